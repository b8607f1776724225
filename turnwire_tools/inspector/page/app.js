// The page: the stream of rows, the address, the keys.

import { count, get, h } from "/page/draw.js";
import { List } from "/page/list.js";
import { sessionView } from "/page/session.js";
import { turnView } from "/page/turn.js";

const REFRESH_MS = 1000;
const find = (id) => document.getElementById(id);
const detail = find("detail");
const list = new List(find("list"), find("rows"), (row, whole) => {
  location.hash = whole ? `#/session/${encodeURIComponent(row.session)}` : `#/turn/${encodeURIComponent(row.id)}`;
});
const view = { kind: "", id: "", session: "", opened: new Set(), fetched: 0, stale: false, timer: 0, number: 0 };

function connect() {
  const stream = new EventSource("/api/stream");
  stream.addEventListener("head", (event) => {
    const head = JSON.parse(event.data);
    find("source").textContent = head.source;
    find("counts").textContent = `${count(head.turns)} turns, ${count(head.sessions)} sessions`;
  });
  stream.addEventListener("rows", (event) => {
    const rows = JSON.parse(event.data);
    if (!rows.length) return;
    list.add(rows);
    document.body.dataset.rows = list.known.size;
    const concerns = (row) => (view.kind === "turn" ? row.id === view.id : row.session === view.session);
    if (view.kind && rows.some(concerns)) refresh();
  });
  stream.addEventListener("error", () => {
    find("counts").textContent = "not connected";
  });
}

// What is open is fetched again when it has changed, at most once a second.
function refresh() {
  const wait = view.fetched + REFRESH_MS - performance.now();
  if (view.timer) return;
  view.timer = setTimeout(() => {
    view.timer = 0;
    show();
  }, Math.max(0, wait));
}

function route() {
  const [, kind, id] = location.hash.match(/^#\/(turn|session)\/(.+)$/) ?? [];
  Object.assign(view, { kind: kind ?? "", id: id ? decodeURIComponent(id) : "", session: "", opened: new Set() });
  document.body.classList.toggle("open", Boolean(kind));
  detail.scrollTop = 0;
  show();
}

async function show() {
  const { kind, id } = view;
  const number = ++view.number;
  view.fetched = performance.now();
  if (!kind) {
    detail.replaceChildren(h("p", { class: "empty" }, "Choose a turn: time line, prompt, blocks, and what was computed again and why."));
    return;
  }
  let content;
  try {
    const data = await get(`/api/${kind}s/${encodeURIComponent(id)}`);
    view.session = kind === "turn" ? data.session : data.id;
    content = kind === "turn" ? turnView(data, view.opened) : sessionView(data);
  } catch (error) {
    content = [h("p", { class: "problem" }, error.message)];
  }
  if (number !== view.number) return; // something else was opened meanwhile
  const top = detail.scrollTop;
  detail.replaceChildren(...content.filter(Boolean)); // a turn without calls has no deliveries
  detail.scrollTop = top;
  detail.dataset.shown = id;
}

async function search() {
  list.filter = find("search").value.trim().replace(/^(req|msg|resp|chatcmpl|cmpl)[_-]/, "");
  list.stale = true;
  list.draw();
  if (list.filter.length >= 4) {
    const rows = await get(`/api/search?q=${encodeURIComponent(list.filter)}`);
    if (rows.length) list.add(rows);
  }
}

function toggleMode() {
  list.bySession = !list.bySession;
  list.selected = null;
  list.stale = true;
  find("mode").textContent = list.bySession ? "Turns" : "Sessions";
  find("list").setAttribute("aria-label", list.bySession ? "Sessions" : "Turns");
  list.frame.scrollTop = 0;
  list.draw();
}

function toggleTheme() {
  const dark = getComputedStyle(document.documentElement).colorScheme.startsWith("dark");
  document.documentElement.dataset.theme = dark ? "light" : "dark";
}

function neighbour(step) {
  if (view.kind !== "turn") return;
  const rows = list.turnsOf(view.session);
  const row = rows[rows.findIndex((one) => one.id === view.id) + step];
  if (row) location.hash = `#/turn/${encodeURIComponent(row.id)}`;
}

const keys = {
  j: () => list.move(1),
  ArrowDown: () => list.move(1),
  k: () => list.move(-1),
  ArrowUp: () => list.move(-1),
  Enter: () => list.choose(list.current()),
  "/": () => find("search").focus(),
  t: toggleMode,
  s: () => view.session && (location.hash = `#/session/${encodeURIComponent(view.session)}`),
  "[": () => neighbour(-1),
  "]": () => neighbour(1),
  d: toggleTheme,
  "?": () => find("keys").showModal(),
  Escape: () => (location.hash = ""),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || find("keys").open) return;
  const typing = event.target === find("search");
  if (typing && event.key === "Enter") {
    list.move(0);
    list.choose(list.current());
  }
  if (typing && (event.key === "Escape" || event.key === "Enter")) find("list").focus();
  if (typing) return;
  const inDetail = detail.contains(event.target) || event.target.tagName === "BUTTON";
  if (inDetail && ["Enter", "ArrowDown", "ArrowUp"].includes(event.key)) return; // its links, and scrolling
  const action = keys[event.key];
  if (action) {
    event.preventDefault();
    action();
  }
});
find("search").addEventListener("input", search);
find("mode").addEventListener("click", toggleMode);
find("theme").addEventListener("click", toggleTheme);
find("help").addEventListener("click", () => find("keys").showModal());
addEventListener("hashchange", route);
route();
connect();
