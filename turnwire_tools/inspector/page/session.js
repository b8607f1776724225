// The head of a session: what it is, what it cost, and its turns as bars.

import { address, clock, computed, count, h, nameOf, plural, searchLink, share, short, svg } from "/page/draw.js";

const HEIGHT = 64;
const STEP = 10;
const MAX_BARS = 400;

export function sessionHead(session) {
  const turns = session.turns;
  const total = (name) => turns.reduce((sum, turn) => sum + (turn[name] ?? 0), 0);
  const prompt = total("prompt");
  const first = turns[0];
  const last = turns.at(-1);
  const asking = turns.find((turn) => turn.label && turn.asks) ?? first;
  const again = total("again");
  const calls = total("calls");
  const facts = [
    ["prompt tokens", short(prompt), `${count(prompt)} in ${plural(turns.length, "request")}`],
    ["from the cache", share(total("cached"), prompt), `${count(total("cached"))} tokens`],
    ["computed", short(turns.reduce((sum, turn) => sum + (computed(turn) ?? 0), 0)), "prompt tokens that were not in the cache"],
    ["computed again", short(again), "of tokens that an earlier turn had", again >= 128 ? "bad" : ""],
    ["written", short(total("output")), `${count(total("output"))} tokens`],
    ["calls", short(calls), plural(calls, "tool call")],
  ];
  const who = [
    first.key && ["key ", searchLink("key", first.key)],
    first.client && searchLink("client", first.client),
    searchLink("model", first.model),
    `${clock(first.time)} to ${clock(last.time + (last.ms ?? 0) / 1000)}`,
    plural(turns.length, "turn"),
  ].filter(Boolean);
  return h("div", { class: "session-head" },
    session.parent && h("p", { class: "parent" }, h("a", { href: address("session", session.parent.session) }, "↑ ", nameOf(session.parent)), ` started this ${first.kind === "background" ? "request" : "helper"}`),
    h("h2", null, session.title || nameOf(asking)),
    session.title && asking.label && h("p", { class: "question" }, asking.label),
    h("p", { class: "who" }, who.map((one, at) => [at ? " · " : "", one])),
    h("dl", { class: "tiles" }, facts.map(([name, value, title, kind]) => h("div", { class: kind, title }, h("dd", null, value), h("dt", null, name)))),
    turns.length > 1 && chart(turns));
}

function chart(all) {
  const turns = all.slice(-MAX_BARS);
  const most = Math.max(1, ...turns.map((turn) => turn.prompt));
  const bars = turns.map((turn, at) => {
    const reused = Math.min(turn.cached ?? 0, turn.prompt);
    const again = Math.min(turn.again, turn.prompt - reused);
    const link = svg("a", { href: address("turn", turn.id) },
      svg("title", null, `turn ${turn.number}: ${count(turn.prompt)} tokens, ${count(reused)} cached, ${count(again)} computed again`),
      svg("rect", { class: "hit", x: at * STEP, y: 0, width: STEP, height: HEIGHT }));
    let top = HEIGHT;
    for (const [kind, tokens] of [["cached", reused], ["again", again], ["computed", turn.prompt - reused - again]]) {
      const height = (HEIGHT * tokens) / most;
      top -= height;
      if (tokens) link.append(svg("rect", { class: kind, x: at * STEP + 1, y: top, width: STEP - 2, height }));
    }
    return link;
  });
  const width = Math.max(24, turns.length) * STEP;
  return h("figure", { class: "chart" },
    h("figcaption", null, `Prompt of each turn, up to ${count(most)} tokens`,
      h("span", { class: "legend" }, h("b", { class: "cached" }), "cached", h("b", { class: "computed" }), "computed", h("b", { class: "again" }), "computed again")),
    svg("svg", { id: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": "Prompt tokens of each turn" }, bars));
}
