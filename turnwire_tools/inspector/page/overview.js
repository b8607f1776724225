// The start page: rates, cache, first tokens, what was computed again, tools and keys.

import { clock, computed, count, h, ms, nameOf, percent, plural, searchLink, share, short, svg, table, turnLink } from "/page/draw.js";

export const SPANS = [[15, "15 min"], [60, "1 h"], [360, "6 h"], [1440, "24 h"], [0, "all"]];
const HEIGHT = 90;
const STEP = 10;

const CAUSES = {
  tools: "tools changed", system: "instructions changed", settings: "settings changed", message: "a message was edited",
  history: "history was cut", answer: "answer was changed", reasoning: "reasoning was left out", template: "template",
  tokenization: "other tokens for the same text", unknown: "unknown", none: "same prompt again", lost: "not in the worker's cache any more",
};

export function overviewPage(data, minutes, choose, live) {
  const { overview, rows } = data;
  const { total } = overview;
  const spanMinutes = Math.max(1, (overview.until - overview.observed) / 60);
  const spans = h("div", { class: "segments", role: "group", "aria-label": "Span of time" }, SPANS.map(([value, name]) =>
    h("button", { type: "button", "aria-pressed": String(value === minutes), onclick: () => choose(value) }, name)));
  const head = h("div", { class: "page-head" }, h("h2", null, "Overview"), spans);
  if (!total.turns) return [head, h("p", { class: "empty" }, live ? "No turns in this span of time. Send a request, or choose a longer span." : "No turns.")];
  return [
    head,
    tiles([
      ["turns a minute", rate(total.turns / spanMinutes), `${plural(total.turns, "turn")} in ${plural(overview.sessions, "session")}${overview.observed > overview.since ? ` since ${minute(overview.observed)}` : ""}${live ? `; now ${rate((60 * overview.recent) / overview.bar_s)}` : ""}`],
      ["from the cache", share(total.cached, total.prompt), `${short(total.cached)} of ${short(total.prompt)} prompt tokens`],
      ["first token, p50", ms(total.p50_ms), `p95 ${ms(total.p95_ms)}`],
      ["computed again", short(total.again), `${share(total.again, total.prompt - total.cached)} of ${short(total.prompt - total.cached)} computed`, total.again >= 128 ? "bad" : ""],
      ["failed", count(total.failed), total.failed ? searchLink("state", "failed", "show them") : "no turn failed", total.failed ? "bad" : ""],
    ]),
    h("div", { class: "charts" },
      chart("Turns a minute", overview, (bar) => [["plain", (60 * bar.turns) / overview.bar_s]], (value) => rate(value), (bar) => plural(bar.turns, "turn")),
      chart("Prompt tokens", overview, (bar) => [["cached", bar.cached], ["again", Math.min(bar.again, bar.prompt - bar.cached)], ["computed", Math.max(0, bar.prompt - bar.cached - bar.again)]], short, (bar) => `${short(bar.cached)} cached, ${short(bar.prompt - bar.cached)} computed, ${short(bar.again)} of them again`, [["cached", "cached"], ["computed", "computed"], ["again", "again"]]),
      chart("First token", overview, (bar) => [["p50", bar.p50_ms ?? 0], ["p95", Math.max(0, (bar.p95_ms ?? 0) - (bar.p50_ms ?? 0))]], ms, (bar) => `median ${ms(bar.p50_ms)}, p95 ${ms(bar.p95_ms)}`, [["p50", "p50"], ["p95", "p95"]])),
    again(overview, rows),
    slowest(overview, rows),
    sums("By key", "key", overview.keys, "no key"),
    sums("By client", "client", overview.clients, "unknown client"),
    tools(overview),
  ];
}

const minute = (seconds) => clock(seconds).slice(0, 5);
const rate = (value) => (value >= 10 ? count(Math.round(value)) : value.toFixed(1));

function tiles(all) {
  return h("dl", { class: "tiles big" }, all.map(([name, value, note, kind]) => h("div", { class: kind }, h("dt", null, name), h("dd", null, value), h("small", null, note))));
}

function chart(title, overview, stack, format, describe, legend = []) {
  const bars = overview.bars.map((bar) => ({ bar, parts: stack(bar) }));
  const most = Math.max(1e-9, ...bars.map(({ parts }) => parts.reduce((sum, [, value]) => sum + value, 0)));
  const drawn = bars.map(({ bar, parts }, at) => {
    const group = svg("g", null, svg("title", null, `${minute(bar.start)}: ${describe(bar)}`), svg("rect", { class: "hit", x: at * STEP, y: 0, width: STEP, height: HEIGHT }));
    let top = HEIGHT;
    for (const [kind, value] of parts) {
      const height = (HEIGHT * value) / most;
      top -= height;
      if (height > 0) group.append(svg("rect", { class: kind, x: at * STEP + 1, y: top, width: STEP - 2, height }));
    }
    return group;
  });
  return h("figure", { class: "chart" },
    h("figcaption", null, title, h("span", { class: "most" }, `max ${format(most)}`)),
    legend.length > 0 && h("span", { class: "legend" }, legend.map(([kind, name]) => [h("b", { class: kind }), name])),
    svg("svg", { viewBox: `0 0 ${Math.max(12, bars.length) * STEP} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title }, drawn),
    h("div", { class: "axis" }, h("span", null, minute(overview.bars[0].start)), h("span", null, minute(overview.until))));
}

const bar = (part, whole, kind, text) => h("span", { class: "measure" }, h("i", null, h("b", { class: kind, at: { width: percent((100 * part) / (whole || 1)) } })), h("span", null, text));

function again(overview, rows) {
  if (!overview.again.length) return h("section", null, h("h3", null, "Computed again"), h("p", { class: "note" }, "Every prompt began with the one before it, and the workers had it: nothing was computed twice."));
  const most = overview.again[0].tokens;
  const lines = overview.again.map((row) => [
    h("b", null, CAUSES[row.cause] ?? row.cause),
    row.client ? searchLink("client", row.client) : "–",
    bar(row.tokens, most, "again", short(row.tokens)),
    count(row.turns),
    rows[row.worst] ? turnLink(rows[row.worst], row.reason || `${short(row.worst_tokens)} tokens`) : row.reason,
  ]);
  return h("section", null, h("h3", null, "Computed again, by cause and client"), table(["cause", "client", "tokens", "turns", "the worst one"], lines, { id: "again" }));
}

function slowest(overview, rows) {
  const found = overview.slowest.map((id) => rows[id]).filter(Boolean);
  const most = found[0]?.ttft_ms;
  const lines = found.map((row) => [
    bar(row.ttft_ms, most, "computed", ms(row.ttft_ms)),
    turnLink(row, nameOf(row)),
    count(row.prompt),
    count(computed(row)),
    row.again >= 128 ? h("span", { class: "trouble" }, count(row.again)) : count(row.again),
    clock(row.time),
  ]);
  return h("section", null, h("h3", null, "Slowest first tokens"), table(["first token", "turn", "prompt", "computed", "again", "time"], lines, { id: "slowest", class: "named" }));
}

function sums(title, field, all, nobody) {
  const most = Math.max(1, ...all.map((one) => one.prompt - one.cached + one.output));
  const lines = all.map((one) => [
    one.name ? searchLink(field, one.name) : h("span", { class: "note" }, nobody),
    count(one.turns),
    bar(one.prompt - one.cached + one.output, most, "computed", short(one.prompt - one.cached)),
    short(one.output),
    share(one.cached, one.prompt),
    one.again >= 128 ? h("span", { class: "trouble" }, short(one.again)) : short(one.again),
    `${ms(one.p50_ms)} / ${ms(one.p95_ms)}`,
    one.failed ? h("span", { class: "trouble" }, count(one.failed)) : "0",
  ]);
  return h("section", null, h("h3", null, title), table([field, "turns", "computed", "written", "cached", "again", "first token p50 / p95", "failed"], lines, { id: `by-${field}` }));
}

function tools(overview) {
  if (!overview.tools.length) return null;
  const weight = (tool) => tool.definition * tool.prompts + tool.result_tokens;
  const most = Math.max(1, ...overview.tools.map(weight));
  const lines = overview.tools.map((tool) => [
    searchLink("tool", tool.name),
    bar(weight(tool), most, "ledger", short(weight(tool))),
    count(tool.definition),
    count(tool.prompts),
    count(tool.calls),
    short(tool.result_tokens),
    tool.errors ? h("span", { class: "trouble" }, count(tool.errors)) : "0",
  ]);
  return h("section", null, h("h3", null, "What tools weigh"),
    table(["tool", "tokens of all prompts", "definition", "prompts", "calls", "results", "errors"], lines, { id: "tools" }),
    h("p", { class: "note" }, "Tokens are estimated by length. A definition is in every prompt, a result counts when it comes."));
}
