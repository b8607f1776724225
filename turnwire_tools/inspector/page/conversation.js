// A session as a conversation: a section for each turn. Only those near the view have content, however many there are.

import { address, cacheBar, clock, computed, count, get, h, ms, plural, running, share, short, turnLink } from "/page/draw.js";
import { drawHead, drawHistory, drawPart, drawRest, helperLink } from "/page/parts.js";
import { turnDetails, why } from "/page/turn.js";

const NEAR = "1200px 0px";
const BATCH = 20; // sections of one request
const WINDOW = 400; // turns that have a section; others follow on demand
const KEPT = 120; // sections that keep their content
const REFRESH_MS = 700;
const SLACK = 4; // pixels: places of scrolled elements are not whole ones

export class Conversation {
  // `frame` scrolls; `rows` are the turns, oldest first; `hidden`: texts are not shown; `images`: they can be read.
  constructor(frame, rows, helpers, { hidden, images, isHelper }) {
    this.frame = frame;
    this.body = h("div", { class: "conversation" });
    this.rows = new Map();
    this.sections = new Map(); // element by turn
    this.content = new Map(); // data by turn, of sections with content, oldest use first
    this.wanted = new Set();
    this.timer = 0;
    this.target = ""; // the turn to which it is scrolling
    this.moving = null; // ends that
    this.fetched = 0;
    this.opened = new Set();
    this.helpers = Map.groupBy(helpers, (helper) => helper.turn);
    this.options = { hidden, images, isHelper, details: new Map() };
    this.observer = new IntersectionObserver((entries) => this.seen(entries), { root: frame, rootMargin: NEAR });
    for (const row of rows) this.rows.set(row.id, row);
    this.mount(0);
  }

  // Makes sections for the turns from a place on.
  mount(first) {
    this.observer.disconnect();
    this.sections.clear();
    this.content.clear();
    this.wanted.clear();
    this.first = Math.max(0, first);
    this.earlier = h("button", { type: "button", class: "rest", onclick: () => this.more(-1) });
    this.later = h("button", { type: "button", class: "rest", onclick: () => this.more(1) });
    this.body.replaceChildren(this.earlier, this.later);
    for (const id of [...this.rows.keys()].slice(this.first, this.first + WINDOW)) this.later.before(this.section(id));
    this.count();
  }

  section(id) {
    const element = h("section", { class: "turn", id: `turn-${id}`, "data-turn": id, "aria-label": `turn ${this.rows.get(id).number}` });
    this.sections.set(id, element);
    this.observer.observe(element);
    return element;
  }

  // Shows the turns before the first section, or after the last one.
  more(direction) {
    const edge = direction < 0 ? this.first : this.first + this.sections.size;
    const id = [...this.rows.keys()][Math.max(0, Math.min(this.rows.size - 1, direction < 0 ? edge - 1 : edge))];
    this.mount(direction < 0 ? edge - WINDOW : edge);
    this.goTo(id);
  }

  count() {
    const rest = this.rows.size - this.first - this.sections.size;
    this.earlier.hidden = this.first === 0;
    this.later.hidden = rest === 0;
    this.earlier.textContent = `${plural(this.first, "earlier turn")}`;
    this.later.textContent = `${plural(rest, "later turn")}`;
  }

  close() {
    this.stop();
    this.observer.disconnect();
    clearTimeout(this.timer);
  }

  // Takes a row that is new or has changed.
  update(row) {
    const isNew = !this.rows.has(row.id);
    this.rows.set(row.id, row);
    if (this.content.has(row.id)) {
      this.want(row.id);
      this.draw(row.id); // its line has the numbers of the list and of the session's head
    }
    if (!isNew) return;
    const showsEnd = this.first + this.sections.size === this.rows.size - 1;
    if (showsEnd) this.later.before(this.section(row.id));
    this.count();
  }

  setHelpers(helpers) {
    const before = JSON.stringify([...this.helpers]);
    this.helpers = Map.groupBy(helpers, (helper) => helper.turn);
    if (JSON.stringify([...this.helpers]) === before) return;
    for (const id of this.content.keys()) this.draw(id);
  }

  seen(entries) {
    for (const entry of entries) {
      const id = entry.target.dataset.turn;
      if (entry.isIntersecting && !this.content.has(id)) this.want(id);
      entry.target.near = entry.isIntersecting;
    }
    this.forget();
  }

  want(id) {
    this.wanted.add(id);
    if (this.timer) return;
    const isNew = [...this.wanted].some((one) => !this.content.has(one));
    const wait = isNew ? 0 : this.fetched + REFRESH_MS - performance.now();
    this.timer = setTimeout(() => this.load(), Math.max(0, wait));
  }

  async load() {
    for (const id of this.wanted) {
      if (!this.sections.get(id)?.near && id !== this.target) this.wanted.delete(id); // scrolled past
    }
    const ids = [...this.wanted].slice(0, BATCH);
    for (const id of ids) this.wanted.delete(id);
    this.timer = 0;
    if (!ids.length) return;
    this.fetched = performance.now();
    try {
      const sections = await get(`/api/conversation?turns=${ids.map(encodeURIComponent).join(",")}`);
      const atEnd = !this.target && this.frame.scrollTop > 0 && this.frame.scrollHeight - this.frame.scrollTop - this.frame.clientHeight < 60;
      for (const section of sections) {
        if (!this.sections.has(section.turn.id)) continue;
        this.content.set(section.turn.id, section);
        this.draw(section.turn.id);
      }
      const found = new Set(sections.map((section) => section.turn.id));
      for (const id of ids) if (!found.has(id)) this.sections.get(id)?.replaceChildren(h("p", { class: "note" }, "This turn is not kept any more."));
      if (atEnd && sections.some((section) => running(section.turn.state) || section.turn.id === [...this.rows.keys()].at(-1))) this.frame.scrollTop = this.frame.scrollHeight;
    } catch (error) {
      for (const id of ids) this.sections.get(id)?.replaceChildren(h("p", { class: "problem" }, error.message));
    }
    if (this.wanted.size) this.want([...this.wanted][0]);
  }

  // Sections far from the view give up their content and keep their height.
  forget() {
    if (this.content.size <= KEPT) return;
    for (const id of [...this.content.keys()]) {
      const element = this.sections.get(id);
      if (element.near || this.content.size <= KEPT) continue;
      element.style.minHeight = `${element.offsetHeight}px`;
      element.replaceChildren();
      this.content.delete(id);
    }
  }

  draw(id) {
    const section = { ...this.content.get(id), turn: this.rows.get(id) };
    const element = this.sections.get(id);
    const view = {
      ...this.options,
      opened: this.opened,
      textAt: (where) => {
        const [turn, of, at] = where.split(" ");
        return `/api/turns/${encodeURIComponent(turn)}/text?of=${of}&at=${at}`;
      },
      toggle: (key) => {
        if (!this.opened.delete(key)) this.opened.add(key);
        this.draw(id);
      },
    };
    element.style.minHeight = "";
    element.classList.toggle("asks", section.turn.asks);
    element.dataset.state = section.turn.state;
    element.replaceChildren(...drawSection(section, view, this.helpers.get(id) ?? []).flat(Infinity).filter(Boolean));
  }

  // Opens or closes the details of a turn; returns whether they are open.
  toggleDetails(id) {
    const key = `${id} details`;
    if (!this.opened.delete(key)) this.opened.add(key);
    const isOpen = this.opened.has(key);
    if (!this.content.has(id)) return isOpen;
    this.draw(id);
    if (isOpen) this.sections.get(id).querySelector(".turn-details").scrollIntoView({ block: "nearest" });
    return isOpen;
  }

  // Scrolls to a turn; `open`: with its details. Sections above get their content later, and the place is kept.
  async goTo(id, open) {
    if (!this.rows.has(id)) return;
    if (!this.sections.has(id)) this.mount([...this.rows.keys()].indexOf(id) - WINDOW / 2);
    const element = this.sections.get(id);
    this.target = id;
    if (open) this.opened.add(`${id} details`);
    if (this.content.has(id)) this.draw(id);
    else this.want(id);
    this.moving?.abort();
    const stop = new AbortController();
    this.moving = stop;
    for (const name of ["wheel", "touchmove", "pointerdown"]) this.frame.addEventListener(name, () => stop.abort(), { passive: true, signal: stop.signal });
    for (let tries = 0; tries < 60 && !stop.signal.aborted; tries++) {
      element.scrollIntoView();
      await new Promise((done) => setTimeout(done, 16));
      if (this.content.has(id) && !this.wanted.size && this.isAt(id) && tries > 3) break;
    }
    if (this.moving !== stop) return; // to another one
    this.stop();
    element.classList.add("target");
    setTimeout(() => element.classList.remove("target"), 1600);
  }

  goToStart() {
    this.stop();
    if (this.first) this.mount(0);
    this.frame.scrollTop = 0;
  }

  stop() {
    this.moving?.abort();
    this.moving = null;
    this.target = "";
    this.body.querySelector(".turn.target")?.classList.remove("target");
  }

  // Whether a turn is where `goTo` leaves it: at the top of the view, or lower in it at the end of the page.
  isAt(id) {
    const top = this.sections.get(id)?.getBoundingClientRect().top - this.frame.getBoundingClientRect().top;
    const atEnd = this.frame.scrollHeight - this.frame.scrollTop - this.frame.clientHeight < 2;
    return Math.abs(top) < SLACK || (atEnd && top > 0 && top < this.frame.clientHeight);
  }

  // The turn at the top of the view, else the first one that begins in it, else the newest.
  inView() {
    const frame = this.frame.getBoundingClientRect();
    const begins = (id) => this.sections.get(id).getBoundingClientRect().top < frame.bottom;
    return this.current() ?? [...this.sections.keys()].find(begins) ?? [...this.rows.keys()].at(-1);
  }

  // The turn at the top of the view; null at the start of the page.
  current() {
    const top = this.frame.getBoundingClientRect().top;
    if (this.body.getBoundingClientRect().top > top + SLACK) return null;
    const ids = [...this.sections.keys()];
    let [low, high] = [0, ids.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.sections.get(ids[middle]).getBoundingClientRect().top <= top + SLACK) low = middle;
      else high = middle - 1;
    }
    return ids[low] ?? null;
  }
}

function drawSection(section, view, helpers) {
  const { turn } = section;
  const ofCall = (id) => helpers.filter((helper) => id && helper.call_id === id).map(helperLink);
  const answer = section.answer.map((part, at) => drawPart(part, `${turn.id} answer ${at}`, null, view, ofCall(part.call_id)));
  const calls = new Set(section.answer.map((part) => part.call_id).filter(Boolean));
  const others = helpers.filter((helper) => !calls.has(helper.call_id)).map(helperLink);
  return [
    bar(section, view),
    notes(section),
    why(section),
    drawHead("Instructions", "system", section.system, section, view),
    drawHead("Tools", "tools", section.tools, section, view),
    drawHistory(section),
    section.parts.map((part, at) => drawPart(part, `${turn.id} parts ${at}`, section, view)),
    drawRest(section),
    answer,
    others.length > 0 && h("div", { class: "helpers" }, others),
    view.opened.has(`${turn.id} details`) && turnDetails(turn.id, view),
  ];
}

// The turn's line: what it cost, and the way to its details.
function bar(section, view) {
  const { turn } = section;
  const key = `${turn.id} details`;
  const state = turn.state === "finished" ? (section.finish === "stop" ? "" : section.finish) : section.finish && section.finish !== turn.state ? `${turn.state}: ${section.finish}` : turn.state;
  const figures = [
    turn.prompt ? `${count(turn.prompt)} tokens` : "",
    turn.prompt && turn.cached !== null ? `${share(turn.cached, turn.prompt)} cached` : "",
    turn.ttft_ms !== null ? `first token ${ms(turn.ttft_ms)}` : "",
    turn.output ? `${short(turn.output)} written` : "",
    turn.ms !== null ? ms(turn.ms) : "",
  ].filter(Boolean);
  return h("header", { class: "bar" },
    h("a", { class: "number", href: address("turn", turn.id), title: `req_${turn.id}` }, `Turn ${turn.number}`),
    h("span", { class: "time" }, clock(turn.time)),
    state && h("span", { class: `state ${turn.state}` }, state),
    turn.again >= 128 && h("span", { class: "state again", title: `${count(computed(turn))} of ${count(turn.prompt)} prompt tokens were computed` }, `${short(turn.again)} again`),
    turn.trouble && h("span", { class: "state again", title: section.troubles.join("\n") }, `⚠ ${troubleOf(section)}`),
    h("span", { class: "figures" }, cacheBar(turn), figures.join(" · ")),
    h("button", { type: "button", class: "details", "aria-expanded": String(view.opened.has(key)), onclick: () => view.toggle(key) }, "Details"));
}

// What went wrong, in a few words.
function troubleOf(section) {
  if (section.attempt > 1) return `attempt ${section.attempt}, on ${section.worker}`;
  return section.troubles.length ? section.troubles[0].split(":")[0] : "";
}

function notes(section) {
  const lines = [];
  if (section.held_for) {
    lines.push(h("p", { class: "held" }, `Held for ${ms(1000 * section.held_s)}, until `, turnLink({ id: section.held_for }, "another turn"), " had computed the beginning of this prompt."));
  }
  if (section.rewritten) lines.push(h("p", { class: "note" }, `The client changed or left out ${plural(section.rewritten, "earlier message")}.`));
  if (section.incomplete) lines.push(h("p", { class: "problem" }, "Messages of this turn were lost on the way to the inspector: its answer is incomplete."));
  return lines;
}
