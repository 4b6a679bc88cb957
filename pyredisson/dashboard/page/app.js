// The page: which view it shows, the stream that fills it, the token, and the dialog before a release by force.

import { Charts } from "./charts.js";
import { shown } from "./cells.js";
import { clock, drawBars, el, number, store, stored, text } from "./dom.js";
import { GraphPage } from "./graph.js";
import { Stream } from "./stream.js";
import { ClientPage, List, LockPage } from "./views.js";
import { WallPage } from "./wall.js";

const LISTS = ["locks", "semaphores", "latches", "clients"];
const SCENES = { graph: GraphPage, wall: WallPage };
const $ = (id) => document.getElementById(id);
const HEADERS = { "Content-Type": "application/json", "X-Pyredisson": "1" };

const THEME = "pyredisson-theme";

let about = null;
let charts = null;
let page = null; // what is shown below the tabs
let stream = null;
let latestEvent = 0;
let retry = null;
let lostSince = null; // since when the dashboard itself doesn't reply

// --- Views

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const parameters = new URLSearchParams(query ?? "");
  const single = (path === "lock" || path === "client") && parameters.get("name");
  return { view: single || LISTS.includes(path) || Object.hasOwn(SCENES, path) ? path : "locks", parameters };
}

function render() {
  const { view, parameters } = route();
  const name = parameters.get("name");
  if (view === "lock") page = new LockPage(name, about && about.unlock ? askRelease : null);
  else if (view === "client") page = new ClientPage(name);
  else if (view in SCENES) page = new SCENES[view]();
  else page = new List(view, parameters, go);
  $("content").replaceChildren(page.element);
  document.documentElement.dataset.view = view;
  const tab = view === "lock" ? "locks" : view === "client" ? "clients" : view;
  for (const link of document.querySelectorAll(".tabs a")) {
    if (link.dataset.view === tab) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${name ?? view} · pyredisson`;
  open();
}

// Filter, order or page have changed: the same list shows other rows, and keeps the focus.
function go(view, parameters) {
  const query = parameters.toString();
  history.replaceState(null, "", `#/${view}${query ? `?${query}` : ""}`);
  open();
}

// --- The stream

function open() {
  close();
  if (document.hidden) return; // a browser has few connections: pages that nobody sees shall not use them up
  const { view, parameters } = route();
  const query = new URLSearchParams(parameters);
  query.set("view", view);
  const mine = new Stream(`events?${query}`, authorization(), (name, data) => heard(mine, () => hear[name](data)), (status) => ended(mine, status));
  stream = mine;
  latestEvent = performance.now();
}

const hear = { about: setAbout, snapshot: show, alive: () => {} };

function close() {
  if (stream !== null) stream.close();
  stream = null;
  clearTimeout(retry);
}

function heard(mine, then) {
  if (stream !== mine) return;
  latestEvent = performance.now();
  if (lostSince !== null) {
    lostSince = null;
    draw();
  }
  then();
}

function ended(mine, status) {
  if (stream !== mine) return;
  close();
  if (status === 401) {
    askToken();
    return;
  }
  lost();
  retry = setTimeout(open, 1000);
}

function lost() {
  if (lostSince === null) lostSince = Date.now();
  draw();
}

function setAbout(found) {
  const before = about;
  about = found;
  text($("server"), found.server);
  text($("version"), `pyredisson ${found.version}`);
  $("login").hidden = true;
  $("app").hidden = false;
  // Whether holds can be released is known only now.
  if (found.unlock && before === null && page instanceof LockPage) render();
}

// --- What is shown

let totals = null;

function show(snapshot) {
  totals = snapshot.totals;
  charts.add(snapshot.points, snapshot.time);
  for (const view of LISTS) text($(`count-${view}`), number(totals[view]));
  page.show(snapshot.view, totals);
  draw();
}

// The state of both connections: to the dashboard, and from there to the server.
function draw() {
  let state = "connecting";
  let words = "connecting";
  let banner = null;
  const problems = totals ? totals.problems : [];
  const deadlocks = totals ? totals.deadlocks : [];
  if (lostSince !== null) {
    [state, words] = ["lost", "no connection"];
    banner = ["lost", `No connection to the dashboard since ${clock(lostSince)}`, "What is shown is what was known then. The page goes on by itself."];
  } else if (totals && totals.away_since) {
    [state, words] = ["away", "server away"];
    banner = ["away", `The server doesn't reply since ${clock(totals.away_since)}`, `${problems.join("; ")}. What is shown is what was known then. The page goes on by itself.`];
  } else if (deadlocks.length) {
    [state, words] = ["deadlock", "deadlock"];
    banner = ["deadlock", "Owners wait for each other", [...deadlocks, ...problems].join("; ")];
  } else if (problems.length) {
    [state, words] = ["partial", "incomplete"];
    banner = ["partial", "Not everything can be shown", problems.join("; ")];
  } else if (totals) {
    [state, words] = ["live", `live, ${(totals.round_trip * 1000).toFixed(1)} ms`];
  }
  const stale = state === "lost" || state === "away";
  document.body.classList.toggle("stale", stale);
  if ($("status").dataset.state !== state) $("status").dataset.state = state;
  text($("status-text"), words);
  $("banner").hidden = banner === null;
  if (banner !== null) {
    $("banner").dataset.kind = banner[0];
    if ($("banner").textContent !== banner[1] + banner[2]) $("banner").replaceChildren(el("strong", {}, banner[1]), el("span", {}, banner[2]));
  }
  if (totals) {
    const all = totals.keys && !totals.complete ? `Looked at ${number(totals.scanned)} of ${number(totals.keys)} keys so far` : `${number(totals.keys)} keys on the server`;
    text($("walk"), all);
  }
}

// --- The token

// Other web servers of this machine, on other ports, get each cookie of its name. What is stored here is for this address only, and
// for this tab.
const TOKEN = "pyredisson-token";
let token = stored("sessionStorage", TOKEN);

function authorization() {
  return token === null ? {} : { Authorization: `Bearer ${token}` };
}

function setToken(text) {
  token = text;
  store("sessionStorage", TOKEN, token);
}

function askToken() {
  text($("login-error"), token === null ? "" : "This isn't the token.");
  setToken(null);
  $("app").hidden = true;
  $("banner").hidden = true;
  $("login").hidden = false;
  text($("status-text"), "token needed");
  $("token").focus();
}

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  // No other token has these characters, and a header can't have others.
  setToken($("token").value.replace(/[^ -~]/g, "?"));
  $("token").value = "";
  open();
});

// --- Release by force

let wanted = null;

function askRelease(name, owner) {
  wanted = { name, owner: owner.raw };
  text($("confirm-text"), owner.kept ? `It is kept after a run of ${owner.who}, whose work is done.` : `It is the hold of ${owner.who}.`);
  $("confirm-working").hidden = owner.kept;
  // A field for text has no line breaks, so what is typed is compared with what is shown.
  text($("confirm-shown"), shown(name));
  text($("confirm-error"), "");
  $("confirm-name").value = "";
  $("confirm-release").disabled = true;
  $("confirm").showModal();
  $("confirm-name").focus();
}

$("confirm-name").addEventListener("input", () => { $("confirm-release").disabled = $("confirm-name").value !== shown(wanted.name); });
$("confirm-cancel").addEventListener("click", () => $("confirm").close());
$("confirm").querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  if ($("confirm-name").value !== shown(wanted.name)) return;
  $("confirm-release").disabled = true;
  try {
    const reply = await fetch("api/unlock", { method: "POST", headers: { ...HEADERS, ...authorization() }, body: JSON.stringify(wanted) });
    if (reply.ok) $("confirm").close();
    else text($("confirm-error"), (await reply.text()).trim());
  } catch {
    text($("confirm-error"), "No connection to the dashboard: it isn't known whether the hold was released.");
  }
});

// --- The beginning

$("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  store("localStorage", THEME, root.dataset.theme);
});

setInterval(() => {
  if (stream === null) return;
  // A connection that is silently dead raises no error. The dashboard says something every five seconds.
  if (performance.now() - latestEvent > 15000) {
    lost();
    open();
  }
  if (!document.body.classList.contains("stale")) drawBars();
}, 250);

document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
window.addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) useToken();
  else if (location.hash !== "#content") render();
});

function useToken() {
  let given = location.hash.slice("#token=".length);
  try {
    given = decodeURIComponent(given);
  } catch {
    // It was typed as it is, with a percent sign.
  }
  // Nobody shall read it from the address bar.
  history.replaceState(null, "", "#/locks");
  setToken(given.replace(/[^ -~]/g, "?"));
  render();
}

const theme = stored("localStorage", THEME);
if (theme) document.documentElement.dataset.theme = theme;
charts = new Charts($("charts"));
if (location.hash.startsWith("#token=")) useToken();
else render();
