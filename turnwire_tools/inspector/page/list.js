// The list of turns, or of sessions. Only the rows in view have elements, however many there are.

import { clock, count, h, ms, share } from "/page/draw.js";

const HEIGHT = 46; // as in style.css
const SPARE = 6;
const KEPT = 25000;

// Sessions in their order, each followed by those of the helpers that it started, oldest first.
function tree(sessions) {
  const present = new Set(sessions.map((row) => row.session));
  const helpers = Map.groupBy(sessions, (row) => (present.has(row.parent) ? row.parent : ""));
  const rows = [];
  const open = (helpers.get("") ?? []).map((row) => ({ ...row, depth: 0 })).reverse();
  for (let row = open.pop(); row !== undefined; row = open.pop()) {
    // no recursion: clients name their parents, and a chain may be as long as the list
    rows.push(row);
    for (const helper of helpers.get(row.session) ?? []) open.push({ ...helper, depth: row.depth + 1 });
  }
  return rows;
}

export class List {
  constructor(frame, body, open) {
    this.frame = frame;
    this.body = body;
    this.open = open;
    this.known = new Map(); // row by id
    this.sessions = new Map(); // ids of turns by session
    this.shown = []; // what the list has: rows, or summaries of sessions
    this.bySession = false;
    this.filter = "";
    this.selected = null;
    this.pool = [];
    this.waiting = false;
    this.stale = true;
    frame.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(frame);
  }

  add(rows) {
    for (const row of rows) {
      this.known.set(row.id, row);
      const turns = this.sessions.get(row.session);
      if (turns === undefined) this.sessions.set(row.session, new Set([row.id]));
      else turns.add(row.id);
    }
    if (this.known.size > KEPT) this.forget();
    this.stale = true;
    this.draw();
  }

  forget() {
    const oldest = [...this.known.values()].sort((one, other) => one.time - other.time).slice(0, KEPT / 5);
    for (const row of oldest) {
      this.known.delete(row.id);
      const turns = this.sessions.get(row.session);
      turns.delete(row.id);
      if (!turns.size) this.sessions.delete(row.session);
    }
  }

  // Turns of a session, oldest first.
  turnsOf(session) {
    const rows = [...(this.sessions.get(session) ?? [])].map((id) => this.known.get(id));
    return rows.sort((one, other) => one.number - other.number || one.time - other.time);
  }

  compute() {
    const words = this.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (row) => words.every((word) => `${row.id} ${row.model} ${row.client} ${row.state}`.toLowerCase().includes(word));
    let rows = [...this.known.values()];
    if (this.bySession) rows = [...this.sessions.keys()].map((session) => this.summary(session));
    this.shown = (words.length ? rows.filter(fits) : rows).sort((one, other) => other.time - one.time);
    if (this.bySession && !words.length) this.shown = tree(this.shown);
    this.stale = false;
  }

  summary(session) {
    const rows = this.turnsOf(session);
    const last = rows[rows.length - 1];
    const total = (name) => rows.reduce((sum, row) => sum + (row[name] ?? 0), 0);
    return { ...last, session, depth: 0, turns: rows.length, prompt: total("prompt"), cached: total("cached"), again: total("again"), output: total("output"), calls: total("calls"), trouble: rows.some((row) => row.trouble) };
  }

  // At most one drawing a frame, however many rows change.
  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      if (this.stale) this.compute();
      this.render();
    });
  }

  render() {
    const first = Math.max(0, Math.floor(this.frame.scrollTop / HEIGHT) - SPARE);
    const room = Math.ceil(this.frame.clientHeight / HEIGHT) + 2 * SPARE;
    const rows = this.shown.slice(first, first + room);
    this.body.style.height = `${this.shown.length * HEIGHT}px`;
    while (this.pool.length < rows.length) this.pool.push(this.element());
    this.pool.forEach((element, at) => {
      element.hidden = at >= rows.length;
      if (at < rows.length) this.set(element, rows[at], first + at);
    });
  }

  element() {
    const part = (name) => h("span", { class: name });
    const parts = Object.fromEntries(["state", "title", "time", "note", "again", "figures"].map((name) => [name, part(name)]));
    const element = h("div", { class: "row", role: "option", onclick: () => this.choose(element.row) }, Object.values(parts));
    element.parts = parts;
    this.body.append(element);
    return element;
  }

  set(element, row, at) {
    const parts = element.parts;
    element.row = row;
    element.style.transform = `translateY(${at * HEIGHT}px)`;
    element.style.paddingLeft = `${10 + 16 * Math.min(row.depth ?? 0, 8)}px`;
    element.dataset.state = row.state;
    element.setAttribute("aria-selected", String(this.keyOf(row) === this.selected));
    parts.state.title = row.trouble ? `${row.state}, with trouble` : row.state;
    parts.title.textContent = this.bySession ? `${row.turns} turn${row.turns === 1 ? "" : "s"} · ${row.model}` : `${row.number}. ${row.model}`;
    parts.time.textContent = clock(row.time);
    parts.again.textContent = row.again >= 128 ? `${count(row.again)} again` : "";
    parts.note.textContent = `${row.client || row.id.slice(0, 8)}${(row.kind ?? "main") === "main" ? "" : ` · ${row.kind}`}${row.trouble ? " ⚠" : ""}`;
    const calls = row.calls ? ` · ${row.calls} call${row.calls === 1 ? "" : "s"}` : "";
    parts.figures.textContent = `${count(row.prompt)} → ${count(row.output)} · ${share(row.cached, row.prompt)} cached · ${ms(row.ttft_ms)}${calls}`;
  }

  keyOf(row) {
    return this.bySession ? row.session : row.id;
  }

  choose(row) {
    if (!row) return;
    this.selected = this.keyOf(row);
    this.open(row, this.bySession);
    this.draw();
  }

  move(step) {
    if (this.stale) this.compute();
    const at = this.shown.findIndex((row) => this.keyOf(row) === this.selected);
    const next = at < 0 ? 0 : Math.max(0, Math.min(this.shown.length - 1, at + step));
    if (!this.shown.length) return;
    this.selected = this.keyOf(this.shown[next]);
    const top = next * HEIGHT;
    if (top < this.frame.scrollTop) this.frame.scrollTop = top;
    if (top + HEIGHT > this.frame.scrollTop + this.frame.clientHeight) this.frame.scrollTop = top + HEIGHT - this.frame.clientHeight;
    this.draw();
  }

  current() {
    return this.shown.find((row) => this.keyOf(row) === this.selected);
  }
}
