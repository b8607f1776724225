// A session: what each turn's prompt had, and what was computed.

import { clock, count, h, ms, share, svg, table, turnLink } from "/page/draw.js";

const HEIGHT = 160;
const STEP = 10;

export function sessionView(session) {
  const turns = session.turns;
  const total = (name) => turns.reduce((sum, turn) => sum + (turn[name] ?? 0), 0);
  const prompt = total("prompt");
  const first = turns[0];
  const rows = turns.map((turn) => [
    turnLink(turn, String(turn.number)),
    clock(turn.time),
    count(turn.prompt),
    share(turn.cached, turn.prompt),
    count(computed(turn)),
    turn.again >= 128 ? h("strong", { class: "trouble" }, count(turn.again)) : count(turn.again),
    ms(turn.ttft_ms),
    count(turn.output),
    session.reasons[turn.id] ?? "",
  ]);
  return [
    h("section", null,
      h("h2", null, `Session · ${first.model}`, h("small", null, ` ${turns.length} turn${turns.length === 1 ? "" : "s"} since ${clock(first.time)}`)),
      h("p", null, `${count(prompt)} prompt tokens, ${share(total("cached"), prompt)} of them from the cache; ${count(total("again"))} computed again; ${count(total("output"))} written.`)),
    h("section", null, h("h3", null, "Prompt tokens of each turn"), chart(turns),
      h("ul", { class: "legend" },
        h("li", null, h("b", { class: "cached" }), "reused"),
        h("li", null, h("b", { class: "encoded" }), "computed, new"),
        h("li", null, h("b", { class: "again" }), "computed again"))),
    h("section", null, h("h3", null, "Turns"),
      table(["turn", "time", "prompt", "cached", "computed", "again", "first token", "output", "why it departs"], rows, "turns")),
  ];
}

const computed = (turn) => (turn.cached === null ? null : Math.max(0, turn.prompt - turn.cached));

function chart(turns) {
  const most = Math.max(1, ...turns.map((turn) => turn.prompt));
  const bars = turns.map((turn, at) => {
    const reused = Math.min(turn.cached ?? 0, turn.prompt);
    const again = Math.min(turn.again, turn.prompt - reused);
    const link = svg("a", { href: `#/turn/${encodeURIComponent(turn.id)}` },
      svg("title", null, `turn ${turn.number}: ${count(turn.prompt)} tokens, ${count(reused)} reused, ${count(again)} computed again`),
      svg("rect", { class: "hit", x: at * STEP, y: 0, width: STEP, height: HEIGHT }));
    let top = HEIGHT;
    for (const [kind, tokens] of [["cached", reused], ["again", again], ["encoded", turn.prompt - reused - again]]) {
      const height = (HEIGHT * tokens) / most;
      top -= height;
      if (tokens) link.append(svg("rect", { class: kind, x: at * STEP + 1, y: top, width: STEP - 2, height }));
    }
    return link;
  });
  const width = Math.max(20, turns.length) * STEP;
  return h("div", { class: "chart" },
    h("span", { class: "most" }, count(most)),
    svg("svg", { id: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": "Prompt tokens of each turn" }, bars));
}
