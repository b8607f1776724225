// The page: the stream of rows, the address, the keys.

import { Conversation } from "/page/conversation.js";
import { address, clock, get, h, plain, plural } from "/page/draw.js";
import { List } from "/page/list.js";
import { SPANS, overviewPage } from "/page/overview.js";
import { sessionHead } from "/page/session.js";

const REFRESH_MS = 1000;
const OVERVIEW_MS = 5000;
const SEARCH_MS = 150;
const SETTLED_MS = 250;
const find = (id) => document.getElementById(id);
const detail = find("detail");
const list = new List(find("list"), find("rows"), (row, whole) => go(whole ? address("session", row.session) : address("turn", row.id)));
const narrow = matchMedia("(max-width: 800px)"); // as in style.css: either the list or what is open
let headKnown;
const whenHeadKnown = new Promise((resolve) => { headKnown = resolve; });
const head = { texts: true, live: true, images: false, started: 0, sessions: 0, turns: 0 };
const view = { page: "", id: "", session: "", conversation: null, number: 0, fetched: 0, timer: 0, settled: 0, kept: false };
const query = { text: "", count: "", minutes: SPANS[1][0], timer: 0, searched: 0, number: 0 };

// -- the address: #/  #/list  #/session/ID  #/turn/ID  #/turn/ID/details, each with ?q= &list=turns &minutes=

function options() {
  const values = new URLSearchParams();
  if (query.text) values.set("q", query.text);
  if (list.mode === "turns") values.set("list", "turns");
  if (query.minutes !== SPANS[1][0]) values.set("minutes", query.minutes);
  const text = values.toString();
  return text ? `?${text}` : "";
}

function go(path) {
  const hash = path + options();
  if (hash === location.hash) route(); // shows it again
  else location.hash = hash;
}

function keep(path) {
  history.replaceState(null, "", path + options());
}

const pathNow = () => location.hash.split("?")[0] || "#/";

// What the address names.
function place() {
  const [, page, id = "", more] = pathNow().match(/^#\/(turn|session|list)?\/?([^/]*)\/?(.*)$/) ?? [];
  const start = narrow.matches && query.text ? "list" : "overview"; // of a search, its hits
  return { page: page || start, id: decoded(id), withDetails: more === "details" };
}

function route() {
  const [, text = ""] = location.hash.split("?");
  const values = new URLSearchParams(text);
  setMode(values.get("list") === "turns" ? "turns" : "sessions");
  const minutes = Number(values.get("minutes") ?? SPANS[1][0]);
  query.minutes = SPANS.some(([one]) => one === minutes) ? minutes : SPANS[1][0];
  if ((values.get("q") ?? "") !== query.text) {
    find("search").value = values.get("q") ?? "";
    search();
  }
  const { page, id, withDetails } = place();
  show(page, id, withDetails);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // an address that was typed by hand
  }
}

// -- what is open

async function show(page, id, withDetails) {
  const sameSession = view.conversation && (page === "turn" ? view.conversation.rows.has(id) : page === "session" && id === view.session);
  Object.assign(view, { page, id });
  document.body.dataset.page = page;
  for (const link of find("pages").children) link.classList.toggle("open", link.dataset.page === page);
  if (sameSession) {
    list.mark(view.session, page === "turn" ? id : "");
    if (page === "turn") await view.conversation.goTo(id, withDetails);
    else view.conversation.goToStart();
    detail.dataset.shown = id;
    return;
  }
  if (view.kept) location.reload();
  view.conversation?.close();
  view.conversation = null;
  view.session = "";
  delete detail.dataset.shown;
  const number = ++view.number;
  if (page === "overview" || page === "list") {
    detail.scrollTop = 0;
    await refresh();
    return;
  }
  try {
    const [session] = await Promise.all([get(`/api/sessions/${encodeURIComponent(id)}`), whenHeadKnown]);
    if (number !== view.number) return; // something else was opened meanwhile
    await open(session, page === "turn" ? id : "", withDetails);
  } catch (error) {
    if (number !== view.number) return;
    detail.replaceChildren(h("p", { class: "problem" }, error.message));
  }
  detail.dataset.shown = id;
}

async function open(session, turn, withDetails) {
  view.session = session.id;
  view.opened = session;
  view.head = sessionHead(session);
  const isHelper = session.turns[0].kind === "helper";
  view.conversation = new Conversation(detail, session.turns, session.helpers, { hidden: !head.texts, images: head.images, isHelper });
  detail.replaceChildren(view.head, view.conversation.body);
  detail.scrollTop = 0;
  document.title = `${plain(session.title || session.turns[0].label || "Session")} – Turnwire inspector`;
  list.mark(session.id, turn);
  if (document.activeElement !== find("search")) detail.focus({ preventScroll: true }); // End and PageDown scroll it
  if (turn) await view.conversation.goTo(turn, withDetails);
}

// A place that was scrolled to is an address, too.
function takePlace() {
  clearTimeout(view.settled);
  if (!view.conversation || view.conversation.moving) return;
  const { page, id } = place();
  if (page !== view.page || id !== view.id) return; // the address leads elsewhere
  if (page === "turn" && view.conversation.isAt(id)) return;
  const turn = view.conversation.current();
  if (turn === (page === "turn" ? id : null)) return;
  Object.assign(view, turn ? { page: "turn", id: turn } : { page: "session", id: view.session });
  keep(turn ? address("turn", turn) : address("session", view.session));
  list.mark(view.session, turn);
}

// Its numbers are those of the rows that have come, as in the list and in each turn's line.
function drawHead() {
  const fresh = sessionHead({ ...view.opened, turns: [...view.conversation.rows.values()] });
  view.head.replaceWith(fresh);
  view.head = fresh;
}

// What is open is fetched again when it has changed, at most once a second.
async function refresh() {
  const number = view.number;
  view.fetched = performance.now();
  if (view.conversation) {
    const session = await get(`/api/sessions/${encodeURIComponent(view.session)}`);
    if (number !== view.number || !view.conversation) return;
    view.opened = session;
    drawHead();
    view.conversation.setHelpers(session.helpers);
    return;
  }
  if (view.page !== "overview" && view.page !== "list") return; // a session is being fetched
  const data = await get(`/api/overview?minutes=${query.minutes}`);
  if (number !== view.number || view.conversation) return;
  const choose = (minutes) => {
    query.minutes = minutes;
    keep(pathNow());
    refresh();
  };
  const top = detail.scrollTop;
  detail.replaceChildren(...overviewPage(data, query.minutes, choose, head.live).flat().filter(Boolean));
  detail.scrollTop = top;
  detail.dataset.shown = "overview";
  document.title = "Turnwire inspector";
}

function refreshSoon() {
  if (view.timer) return;
  const every = view.conversation ? REFRESH_MS * Math.max(1, view.conversation.rows.size / 500) : OVERVIEW_MS;
  const pause = detail.dataset.shown ? every : 200;
  view.timer = setTimeout(() => {
    view.timer = 0;
    refresh().catch(() => {});
  }, Math.max(0, view.fetched + pause - performance.now()));
}

// -- rows

function connect() {
  const stream = new EventSource("/api/stream");
  stream.addEventListener("head", (event) => {
    const told = JSON.parse(event.data);
    if (head.started && head.started !== told.started) {
      stream.close(); // another inspector, which lacks these turns
      if (view.conversation) keepShown(told);
      else location.reload();
      return;
    }
    Object.assign(head, told);
    headKnown();
    const words = told.texts ? "" : " · texts are hidden";
    const state = told.lost_at ? `bus lost since ${clock(told.lost_at)}` : told.live ? "live" : "recording";
    showStatus(state, `${told.source}${words}`, told.lost_at ? "lost" : told.live ? "live" : "");
    showCounts();
    document.body.dataset.turns = told.turns;
  });
  stream.addEventListener("rows", (event) => {
    const rows = JSON.parse(event.data);
    if (!rows.length) return;
    list.add(rows);
    document.body.dataset.rows = list.known.size;
    if (query.text && performance.now() - query.searched > 3000) searchSoon();
    if (view.conversation) {
      const mine = rows.filter((row) => row.session === view.session);
      for (const row of mine.sort((one, other) => one.number - other.number)) view.conversation.update(row);
      if (mine.length) drawHead();
      if (mine.length || rows.some((row) => row.parent === view.session)) refreshSoon();
    } else {
      refreshSoon();
    }
  });
  stream.addEventListener("error", () => {
    if (find("status").dataset.lost) return;
    showStatus(`inspector lost since ${clock(Date.now() / 1000)}`, "", "lost");
    find("status").dataset.lost = "inspector";
  });
}

// A conversation stays as far as it has come, until its reader goes on.
function keepShown(told) {
  view.kept = true;
  const since = `The inspector began again at ${clock(told.started)}, without earlier turns. This session is as it was then. `;
  detail.prepend(h("p", { class: "problem", id: "kept" }, since, h("a", { href: "#/" }, "Show the new turns")));
  detail.scrollTop = 0;
  showStatus("an earlier inspector", "", "lost");
}

function showStatus(state, source, kind) {
  const status = find("status");
  const more = source && ` · ${source}`;
  if (status.textContent === state + more) return; // a change is announced to screen readers
  status.replaceChildren(h("b", null, state), h("span", null, more));
  status.title = source;
  status.dataset.state = kind;
  delete status.dataset.lost;
}

// -- search

function searchSoon() {
  clearTimeout(query.timer);
  query.timer = setTimeout(search, SEARCH_MS);
}

async function search() {
  clearTimeout(query.timer);
  query.text = find("search").value.trim();
  query.searched = performance.now();
  const number = ++query.number;
  if (!query.text) {
    query.count = "";
    list.find(null);
    showCounts();
    return;
  }
  const { found, more } = await get(`/api/search?q=${encodeURIComponent(query.text)}`).catch(() => ({ found: [], more: false }));
  if (number !== query.number) return;
  query.count = more ? `the newest ${plural(found.length, "turn")} found` : `${plural(found.length, "turn")} found`;
  list.find(found.map(({ row, hit }) => ({ ...row, hit })));
  showCounts();
}

function showCounts() {
  find("counts").textContent = query.count || `${plural(head.sessions, "session")}, ${plural(head.turns, "turn")}`;
}

async function typed(event) {
  if (event.key === "Enter") {
    await search();
    keep(pathNow());
    list.selected = null;
    list.move(0);
    find("list").focus();
    list.choose(list.current());
  } else if (event.key === "Escape") {
    endSearch();
    find("list").focus();
  }
}

function endSearch() {
  find("search").value = "";
  search();
  keep(pathNow());
}

// -- keys

function setMode(mode) {
  if (mode === list.mode) return;
  list.show(mode);
  find("list").setAttribute("aria-label", mode === "turns" ? "Turns" : "Sessions");
  for (const button of find("modes").querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.mode === mode));
}

function chooseMode(mode) {
  setMode(mode);
  keep(pathNow());
}

function toggleTheme() {
  const dark = getComputedStyle(document.documentElement).colorScheme.startsWith("dark");
  document.documentElement.dataset.theme = dark ? "light" : "dark";
}

// Moves by turns. Before the first one is the start of the session; the last one is shown again.
function neighbour(step) {
  if (!view.conversation) return;
  takePlace();
  const { page, id } = place(); // also of a turn that is on its way into view
  const ids = [...view.conversation.rows.keys()];
  if (id !== view.session && !ids.includes(id)) return; // another session is being fetched
  const at = page === "turn" ? ids.indexOf(id) + step : Math.max(-1, step - 1);
  go(at < 0 ? address("session", view.session) : address("turn", ids[Math.min(at, ids.length - 1)]));
}

// The details of the turn that is open or in view; else of the newest one.
function toggleDetails() {
  if (!view.conversation) {
    const newest = list.newest();
    if (newest) go(`${address("turn", newest.id)}/details`);
    return;
  }
  const id = view.page === "turn" ? view.id : view.conversation.inView();
  const isOpen = view.conversation.toggleDetails(id);
  Object.assign(view, { page: "turn", id });
  keep(`${address("turn", id)}${isOpen ? "/details" : ""}`);
}

function moveInList(step) {
  find("list").focus(); // so that Enter opens what is selected
  list.move(step);
}

const keys = {
  j: () => moveInList(1),
  ArrowDown: () => moveInList(1),
  k: () => moveInList(-1),
  ArrowUp: () => moveInList(-1),
  Enter: () => list.choose(list.current()),
  "/": () => find("search").select(),
  t: () => chooseMode(list.mode === "turns" ? "sessions" : "turns"),
  s: () => view.session && go(address("session", view.session)),
  e: () => toggleDetails(),
  o: () => go("#/"),
  "[": () => neighbour(-1),
  "]": () => neighbour(1),
  n: () => view.conversation && go(address("turn", [...view.conversation.rows.keys()].at(-1))),
  d: toggleTheme,
  "?": () => find("keys").showModal(),
  Escape: () => (query.text ? endSearch() : go("#/")),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || find("keys").open) return;
  if (event.target === find("search")) {
    typed(event);
    return;
  }
  const inDetail = detail.contains(event.target) || ["BUTTON", "A", "SUMMARY"].includes(event.target.tagName);
  if (inDetail && ["Enter", "ArrowDown", "ArrowUp"].includes(event.key)) return; // its links, and scrolling
  const action = keys[event.key];
  if (action) {
    event.preventDefault();
    action();
  }
});
detail.addEventListener("scroll", () => {
  clearTimeout(view.settled);
  view.settled = setTimeout(takePlace, SETTLED_MS);
}, { passive: true });
find("search").addEventListener("input", () => {
  if (narrow.matches && view.page !== "list") go("#/list");
  searchSoon();
  query.text = find("search").value.trim();
  keep(pathNow());
});
find("modes").addEventListener("click", (event) => event.target.dataset.mode && chooseMode(event.target.dataset.mode));
find("theme").addEventListener("click", toggleTheme);
find("help").addEventListener("click", () => find("keys").showModal());
addEventListener("hashchange", route);
route();
connect();
