// One turn: why it computed tokens again, and its details: prompt, time line, calls, tokens, events.

import { LEAST_AGAIN, count, get, h, ms, percent, sentence, share, table, turnLink } from "/page/draw.js";

const MAX_LANES = 80;
const MAX_TOKENS = 4000;

// What a turn's line does not say. It is fetched when it is opened.
export function turnDetails(id, view) {
  const box = h("div", { class: "turn-details" });
  const draw = (turn) => box.replaceChildren(...[facts(turn), prompt(turn), timeline(turn), deliveries(turn), tokensOf(turn, view), marks(turn)].filter(Boolean));
  if (view.details.has(id)) draw(view.details.get(id));
  const load = async () => {
    const turn = await get(`/api/turns/${encodeURIComponent(id)}`);
    view.details.set(id, turn);
    draw(turn);
  };
  load().catch((error) => box.append(h("p", { class: "problem" }, error.message)));
  return box;
}

function expected(turn) {
  const missed = turn.cached === null ? 0 : turn.expected - turn.cached;
  return missed > 0 ? `${count(turn.expected)}, of which the engine lacked ${count(missed)}` : count(turn.expected);
}

function facts(turn) {
  const found = [
    ["request", h("code", null, `req_${turn.id}`)],
    ["expected in the cache", expected(turn)],
    ["output", `${count(turn.output)} tokens${turn.reasoning ? `, ${count(turn.reasoning)} reasoning` : ""}`],
    ["limit", count(turn.max_tokens)],
    ["end", turn.finish || turn.state],
    ["worker", turn.worker || "–"],
    ["parser", turn.parser || "–"],
    ["attempts", count(turn.attempt)],
  ];
  return h("dl", { class: "facts" }, found.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

const estimate = (cost, tokens) => (cost.ms_per_token === null ? "" : `, about ${ms(tokens * cost.ms_per_token)}`);

const again = (cost) => (cost.changed < LEAST_AGAIN ? "but the worker had almost all of the new prompt from another turn" : `${count(cost.changed)} tokens were computed again${estimate(cost, cost.changed)}`);

// Where the prompt does not begin with the one before it: why, and what that cost.
export function why({ difference, cost, turn }) {
  if (!difference || !cost || difference.extends && !cost.lost) return null;
  const bad = cost.changed + cost.lost >= LEAST_AGAIN;
  if (!bad && difference.cause === "none") return h("p", { class: "note why-not" }, sentence(difference.reason));
  const lines = [];
  const isLostOnly = difference.cause === "none";
  if (!isLostOnly) lines.push(h("p", { class: "cause" }, sentence(difference.reason)));
  if (difference.again) {
    lines.push(h("p", { class: "price" }, `From token ${count(difference.at)} on, ${count(difference.again)} tokens of the `,
      turnLink({ id: difference.previous, number: turn.number - 1 }, "turn before"),
      ` and its answer could not be reused: ${again(cost)}.`));
  }
  if (cost.lost) {
    const text = `${count(cost.lost)} tokens that both have in common were not in the worker's cache${estimate(cost, cost.lost)}: ${cost.lost_reason}.`;
    lines.push(h("p", { class: isLostOnly ? "cause" : "lost" }, text));
  }
  if (difference.changes.length) {
    const rows = difference.changes.map((change) => [change.where, h("del", null, change.was || "–"), h("ins", null, change.now || "–")]);
    lines.push(table(["the client changed", "before", "now"], rows, { class: "changes" }));
  }
  if (difference.was || difference.now) {
    lines.push(h("details", null, h("summary", null, "Tokens around the place"), h("pre", { class: "was" }, difference.was), h("pre", { class: "now" }, difference.now)));
  }
  if (bad && cost.ms_per_token !== null) {
    lines.push(h("p", { class: "note" }, `Time estimated from ${count(cost.turns)} turns: ${(1000 / cost.ms_per_token).toLocaleString("en-US", { maximumFractionDigits: 0 })} prompt tokens a second.`));
  }
  return h("aside", { class: bad ? "why bad" : "why", "aria-label": "Difference to the prompt before" }, lines);
}

const KINDS = {
  cached: "cached at the worker",
  ledger: "from the ledger, computed",
  encoded: "newly encoded",
  unknown: "computed",
};

function prompt(turn) {
  const total = turn.prompt;
  if (!total) return null;
  const kindOf = (segment) => (segment.cached ? "cached" : segment.source || "unknown");
  const sums = {};
  let answers = 0;
  for (const segment of turn.segments) {
    sums[kindOf(segment)] = (sums[kindOf(segment)] ?? 0) + segment.end - segment.start;
    if (segment.answer !== null) answers += segment.end - segment.start;
  }
  const place = (segment) => ({ left: percent((100 * segment.start) / total), width: percent((100 * (segment.end - segment.start)) / total) });
  const text = (segment) => `tokens ${count(segment.start)} to ${count(segment.end)}: ${KINDS[kindOf(segment)]}${segment.answer === null ? "" : `, the answer of turn ${segment.answer} in its own tokens`}`;
  const parts = turn.segments.map((segment) => h("span", { class: `${kindOf(segment)}${segment.answer === null ? "" : " answer"}`, title: text(segment), at: place(segment) }));
  const at = turn.difference && !turn.difference.extends ? turn.difference.at : null;
  if (at !== null && turn.difference.again) parts.push(h("i", { title: `departs from the previous prompt at token ${count(at)}`, at: { left: percent((100 * at) / total) } }));
  const legend = Object.entries(sums).map(([kind, sum]) => h("li", null, h("b", { class: kind }), `${KINDS[kind]} `, h("strong", null, count(sum))));
  if (answers) legend.push(h("li", null, h("b", { class: "answer" }), "original tokens of earlier answers ", h("strong", null, count(answers))));
  if (turn.tools) legend.push(h("li", { title: "at the start of the prompt, about" }, "definitions of tools ", h("strong", null, `≈ ${count(turn.tools)} of ${count(total)}`)));
  const recall = { "": "", first: "", reused: "" }[turn.recall] ?? ` The ledger's outcome for the newest answer: ${turn.recall}.`;
  return h("div", null,
    h("h4", null, `Prompt, ${count(total)} tokens`),
    h("div", { class: "strip", role: "img", "aria-label": legend.map((item) => item.textContent).join(", ") }, parts),
    h("ul", { class: "legend" }, legend),
    recall && h("p", { class: "note" }, recall.trim()));
}

function timeline(turn) {
  const end = Math.max(turn.ms ?? 0, turn.marks.at(-1)?.ms ?? 0, 0.1);
  const placed = turn.marks.find((mark) => mark.kind === "placed");
  const lanes = [];
  const held = turn.marks.find((mark) => mark.kind === "held");
  if (placed) lanes.push(["prompt prepared", "prepare", 0, (held ?? placed).ms]);
  if (held) lanes.push([`held: ${held.text}`, "prepare", held.ms, placed.ms]);
  if (placed && turn.ttft_ms !== null) lanes.push(["queue and prefill", "prefill", placed.ms, turn.ttft_ms]);
  turn.blocks.slice(0, MAX_LANES).forEach((block, at) => {
    const before = at ? turn.blocks[at - 1].end_ms ?? block.start_ms : block.start_ms;
    lanes.push([`${at + 1}. ${block.kind === "tool_use" ? block.name : block.kind}`, block.kind, block.start_ms, block.end_ms ?? end, dispatched(block), before]);
  });
  const written = turn.blocks.at(-1)?.end_ms ?? null;
  if (written !== null && turn.ms !== null && turn.ms - written >= 0.01 * end) lanes.push(["end of the answer", "rest", written, turn.ms]);
  const hasMarkup = lanes.some(([, , from, , , before]) => before !== undefined && from - before >= 0.01 * end);
  const x = (time) => percent((100 * time) / end);
  const trouble = turn.marks.filter((mark) => mark.trouble);
  const ticks = (mark) => h("i", { class: "trouble", title: `${mark.kind}: ${mark.text}`, at: { left: x(mark.ms) } });
  const lane = ([name, kind, from, to, sent, before = from]) => h("div", { class: "lane" },
    h("span", null, name),
    h("div", { class: "track" },
      before < from && h("b", { class: `${kind} markup`, title: `${ms(before)} to ${ms(from)}: the tokens before it`, at: { left: x(before), width: x(from - before) } }),
      h("b", { class: kind, title: `${ms(from)} to ${ms(to)}`, at: { left: x(from), width: x(to - from) } }),
      sent && h("i", { class: "dispatch", title: `dispatched at ${ms(sent)}`, at: { left: x(sent) } }),
      trouble.map(ticks)),
    h("span", { class: "took" }, ms(to - from)));
  const more = turn.blocks.length - MAX_LANES;
  return h("div", { class: "timeline" },
    h("h4", null, `Time line, ${ms(turn.ms ?? end)}`),
    lanes.map(lane),
    hasMarkup && h("p", { class: "note" }, "Pale: the tokens with which the model begins a block, such as the name of a call."),
    more > 0 && h("p", { class: "note" }, `${count(more)} more blocks`));
}

// When a client could run a complete call at the earliest; null for any other block.
const dispatched = (block) => (block.kind === "tool_use" && block.complete ? block.dispatch_ms ?? block.end_ms : null);

function deliveries(turn) {
  const rows = turn.blocks.flatMap((block, at) => {
    const sent = dispatched(block);
    if (sent === null) return [];
    const next = turn.blocks[at + 1];
    return [[block.name, ms(turn.ms), ms(next ? next.start_ms : turn.ms), ms(sent), turn.ms === null ? "–" : ms(turn.ms - sent)]];
  });
  if (!rows.length) return null;
  return h("div", null,
    h("h4", null, "When each call could run"),
    table(["call", "buffered", "streamed", "dispatched", "dispatch saves"], rows, { class: "deliveries" }),
    h("p", { class: "note" }, "Buffered: with the whole answer. Streamed: in pieces without an end, so when the next block begins or the answer ends. Dispatched: at the call's own last token, as here."));
}

// The tokens of each block, on demand.
function tokensOf(turn, view) {
  if (!turn.tokens) return null;
  const into = h("div", { class: "tokens" });
  const key = `${turn.id} tokens`;
  const show = async () => {
    view.opened.add(key);
    into.replaceChildren(h("p", { class: "note" }, "loading"));
    try {
      const found = await get(`/api/turns/${encodeURIComponent(turn.id)}/tokens`);
      const groups = found.blocks.length ? turn.blocks.map((block, at) => [block.name || block.kind, tokens(found, at)]) : [["answer", tokens(found, 0)]];
      into.replaceChildren(...groups.map(([name, parts]) => h("div", null, h("h5", null, name), parts)));
    } catch (error) {
      into.replaceChildren(h("p", { class: "problem" }, error.message));
    }
  };
  if (view.opened.has(key)) show();
  return h("div", null, h("h4", null, "Tokens of the answer"), h("button", { type: "button", onclick: show }, "Tokens"), into);
}

function tokens(found, at) {
  const [start, end] = found.blocks[at] ?? [0, found.ids.length];
  const chip = (id, index) => h("span", { title: `token ${start + index}: ${id}` }, found.texts[start + index] ?? String(id));
  const shown = found.ids.slice(start, Math.min(end, start + MAX_TOKENS)).map(chip);
  const which = found.blocks.length ? "" : " (of the whole answer: without a tokenizer the blocks' own are unknown)";
  return [h("p", { class: "note" }, `${count(end - start)} tokens${which}`), h("p", { class: "chips" }, shown)];
}

function marks(turn) {
  const rows = turn.marks.map((mark) => [ms(mark.ms), mark.trouble ? h("strong", { class: "trouble" }, mark.kind) : mark.kind, mark.text]);
  if (turn.ms !== null) rows.push([ms(turn.ms), turn.state, turn.finish]);
  return h("div", null, h("h4", null, "Events"), table(["after", "event", ""], rows, { class: "marks" }));
}
