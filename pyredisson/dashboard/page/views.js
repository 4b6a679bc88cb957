// What each view shows of a snapshot: lists with columns, and the pages of one lock or one client.

import { age, alive, clientLink, counted, holder, kind, lasts, levels, objectLink, place, plain, raw, shown, since, ttl, use, waiters, waiting, waits } from "./cells.js";
import { attribute, clock, duration, el, number, sync, text } from "./dom.js";

const KINDS = ["lock", "fair", "fenced", "spin", "read-write", "group"];
const NOUNS = { locks: ["lock", "locks"], semaphores: ["semaphore", "semaphores"], latches: ["latch", "latches"], clients: ["client", "clients"] };
const EMPTY = {
  locks: "No lock is held",
  semaphores: "No semaphore exists",
  latches: "No latch is closed",
  clients: "No client holds anything or has announced itself",
};

const COLUMNS = {
  locks: [
    ["name", "Name", objectLink, "name"],
    ["kind", "Kind", kind],
    ["holder", "Holder", holder],
    ["since", "Held since", since],
    ["ttl", "Lease left", ttl],
    ["waiters", "Waiting", waiters],
  ],
  semaphores: [
    ["name", "Name", objectLink, "name"],
    ["kind", "Kind", kind],
    ["used", "Permits in use", use],
    ["free", "Free", plain((row) => number(row.free)), "number"],
    ["waiters", "Waiting", waiters],
  ],
  latches: [
    ["name", "Name", objectLink, "name"],
    ["count", "Count", plain((row) => number(row.count)), "number"],
    ["waiters", "Waiting", waiters],
  ],
  clients: [
    ["who", "Client", clientLink],
    ["program", "Program", plain((row) => row.program)],
    ["version", "Version", plain((row) => row.version)],
    ["since", "Since", since],
    ["holds", "Holds", counted((row) => row.holds), "number"],
    ["waits", "Waits", plain(waits)],
    ["lost", "Lost", counted((row) => row.lost), "number"],
  ],
};

// --- Tables

export function table(label, columns, sort) {
  const heads = columns.map(([key, title, , style]) => {
    const inside = sort ? el("button", { type: "button", "data-sort": key, onclick: () => sort(key) }, title) : el("span", {}, title);
    return el("th", { scope: "col", class: style }, inside);
  });
  const made = el("table", { "aria-label": label }, el("thead", {}, el("tr", {}, ...heads)), el("tbody"));
  return el("div", { class: "card values" }, made);
}

export function fill(card, columns, rows, keyOf) {
  const body = card.querySelector("tbody");
  sync(body, rows, keyOf,
    (row) => el("tr", {}, ...columns.map(([key, title, cell, style]) => el("td", { class: style, "data-label": title, "data-column": key }, cell.make(row)))),
    (line, row) => columns.forEach(([, , cell], at) => cell.set(line.children[at].firstChild, row)));
}

// A table that vanishes with its heading while it is empty.
export function fillPart(card, columns, rows, keyOf) {
  card.hidden = card.previousSibling.hidden = rows.length === 0;
  fill(card, columns, rows, keyOf);
}

// --- A list, with filter, order and pages

export class List {
  constructor(view, parameters, go) {
    this.view = view;
    this.columns = COLUMNS[view];
    this.go = go;
    this.parameters = parameters;
    const one = NOUNS[view][0];
    this.filter = el("input", { type: "search", id: "filter", placeholder: view === "clients" ? "Filter: web-3, billing*" : `Filter by name or holder: cron, *:nightly`,
      "aria-label": `Filter ${NOUNS[view][1]}`, value: parameters.get("filter") ?? "", autocomplete: "off", spellcheck: "false" });
    this.filter.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.change({ filter: this.filter.value, page: null }), 250);
    });
    this.found = el("span", { class: "found", role: "status" });
    this.card = table(NOUNS[view][1], this.columns, (key) => this.sort(key));
    this.empty = el("div", { class: "card empty", hidden: true }, el("strong"), el("span"));
    this.where = el("span", { class: "where" });
    this.pager = el("nav", { class: "pager", "aria-label": "Pages", hidden: true },
      this.button("«", "First page", () => 1), this.button("‹", "Previous page", (page) => page - 1), this.where,
      this.button("›", "Next page", (page) => page + 1), this.button("»", "Last page", (page, pages) => pages));
    const tools = el("div", { class: "tools" }, this.filter, view === "locks" ? this.kinds() : null, this.found);
    this.element = el("div", { "data-view": view, "aria-label": `List of ${one}` }, tools, this.card, this.empty, this.pager);
    this.order();
  }

  button(sign, label, target) {
    return el("button", { type: "button", "aria-label": label, "data-page": label, onclick: () => this.change({ page: target(this.page, this.pages) }) }, sign);
  }

  kinds() {
    const choice = el("select", { id: "kind", "aria-label": "Kind of lock" }, el("option", { value: "" }, "all kinds"),
      ...KINDS.map((each) => el("option", { value: each, selected: this.parameters.get("kind") === each }, each)));
    choice.addEventListener("change", () => this.change({ kind: choice.value, page: null }));
    return choice;
  }

  change(values) {
    for (const [name, value] of Object.entries(values)) {
      if (value) this.parameters.set(name, value);
      else this.parameters.delete(name);
    }
    this.order();
    this.go(this.view, this.parameters);
  }

  sort(key) {
    const now = this.parameters.get("sort") ?? this.columns[0][0];
    this.change({ sort: now === key ? `-${key}` : key, page: null });
  }

  order() {
    const now = this.parameters.get("sort") ?? this.columns[0][0];
    for (const head of this.card.querySelectorAll("th")) {
      const key = head.firstChild.dataset.sort;
      attribute(head, "aria-sort", now === key ? "ascending" : now === `-${key}` ? "descending" : null);
    }
  }

  show(view, totals) {
    [this.page, this.pages] = [view.page, view.pages];
    fill(this.card, this.columns, view.rows, (row) => row.id ?? row.name);
    const nothing = view.total === 0;
    this.card.hidden = nothing;
    this.empty.hidden = !nothing;
    if (nothing) {
      const filtered = this.parameters.get("filter") || this.parameters.get("kind");
      text(this.empty.firstChild, filtered ? `No ${NOUNS[this.view][0]} fits the filter` : EMPTY[this.view]);
      text(this.empty.lastChild, totals.complete ? "What comes is shown at once." : "The keys of the server are still being looked at.");
    }
    text(this.found, nothing ? "" : `${number(view.total)} ${NOUNS[this.view][view.total === 1 ? 0 : 1]}`);
    this.pager.hidden = view.pages < 2;
    text(this.where, `Page ${number(view.page)} of ${number(view.pages)}`);
    for (const button of this.pager.querySelectorAll("button")) {
      const backwards = button.dataset.page.startsWith("First") || button.dataset.page.startsWith("Previous");
      button.disabled = backwards ? view.page <= 1 : view.page >= view.pages;
    }
  }
}

// --- The page of one object

function facts() {
  return el("dl", { class: "facts" });
}

function setFacts(list, pairs) {
  sync(list, pairs.filter(([, value]) => value !== null && value !== undefined && value !== ""), ([name]) => name,
    ([name]) => el("div", {}, el("dt", {}, name), el("dd")),
    (line, [, value]) => text(line.lastChild, value));
}

const QUEUE = [["place", "Place", place, "number"], ["who", "Client", clientLink], ["since", "Since", since], ["alive", "State", alive], ["raw", "Owner", raw], ["lasts", "Place lasts", lasts]];
const COMPANIONS = [["key", "Key", plain((row) => shown(row.key)), "name"], ["type", "Type", plain((row) => row.type)],
  ["purpose", "Purpose", plain((row) => row.purpose)], ["ttl", "Lease left", plain((row) => (row.ttl < 0 ? "stays" : duration(row.ttl)))]];

const PAST = [["holder", "Holder", clientLink], ["from", "From", plain((row) => clock(row.from))], ["until", "Until", plain((row) => `${clock(row.until)} (${duration((Date.parse(row.until) - Date.parse(row.from)) / 1000)})`)],
  ["waited", "Waiting at most", counted((row) => row.waiters), "number"]];

export class LockPage {
  constructor(name, release) {
    const unlock = {
      make: (owner) => el("button", { type: "button", class: "release", onclick: () => release(name, owner) }, "Release…"),
      set: () => {},
    };
    this.holders = [["who", "Client", clientLink], ["levels", "Hold", levels], ["raw", "Owner", raw], ["since", "Since", since], ["ttl", "Lease left", ttl], ...(release ? [["act", "Release", unlock, "act"]] : [])];
    this.kind = kind.make();
    this.why = el("p", { class: "why" });
    this.facts = facts();
    this.owners = table("Holders", this.holders);
    this.queue = table("Queue", QUEUE);
    this.past = table("Former holders", PAST);
    this.companions = table("Further keys", COMPANIONS);
    this.body = el("div", {}, el("div", { class: "card values" }, this.facts),
      el("h3", {}, "Holders"), this.owners, el("h3", {}, "Waiting, the next one or the oldest first"), this.queue,
      el("h3", {}, "Former holders, as far as this dashboard has seen them"), this.past, el("h3", {}, "Further keys"), this.companions);
    this.empty = el("div", { class: "card empty" }, "Reading…");
    this.element = el("div", { "data-view": "lock" }, el("p", {}, el("a", { href: "#/locks" }, "← All locks")),
      el("div", { class: "head" }, el("h2", { class: "mono" }, shown(name)), this.kind), this.why, this.empty, this.body);
  }

  show(view) {
    const row = view.row;
    this.empty.hidden = row !== null;
    this.body.hidden = this.kind.hidden = row === null;
    if (row === null) return;
    kind.set(this.kind, row);
    text(this.why, view.why ? `${row.certain ? "Known, because" : "A guess:"} ${view.why}.` : "");
    const use = row.permits === null ? null : `${number(row.owners)} of ${number(row.permits)} in use`;
    setFacts(this.facts, [
      ["State", row.count !== null ? `closed, count ${number(row.count)}` : row.free !== null ? use ?? `${number(row.free)} free` : row.held ? `held by ${row.holder}` : "free"],
      ["Held since", row.since ? `${clock(row.since)} ${age(row.since)}` : null],
      ["Waiting", waiting(row) || "nobody"],
      ["Fencing token", row.token === null ? null : number(row.token)],
      ["Server", view.server],
    ]);
    fillPart(this.owners, this.holders, view.owners.map((owner) => ({ ...owner, scale: row.scale })), (owner) => owner.raw);
    fillPart(this.queue, QUEUE, view.queue, (waiter) => waiter.raw);
    fillPart(this.past, PAST, view.past, (hold) => `${hold.from} ${hold.until} ${hold.who}`);
    fillPart(this.companions, COMPANIONS, view.companions, (companion) => companion.key);
  }
}

// --- The page of one client

const HOLDS = [["name", "Name", objectLink, "name"], ["kind", "Kind", kind], ["levels", "Hold", levels], ["since", "Since", since], ["ttl", "Lease left", ttl]];
const WAITS = [["name", "Name", objectLink, "name"], ["kind", "Kind", kind], ["place", "Place", place, "number"], ["since", "Since", since], ["alive", "State", alive]];

export class ClientPage {
  constructor(id) {
    this.title = el("h2", {}, id);
    this.facts = facts();
    this.holds = table("Holds", HOLDS);
    this.waits = table("Waits", WAITS);
    this.empty = el("div", { class: "card empty" }, el("strong", {}, "This client is gone"), el("span", {}, "It holds nothing, waits for nothing, and doesn't announce itself."));
    this.body = el("div", {}, el("div", { class: "card values" }, this.facts), el("h3", {}, "Holds"), this.holds, el("h3", {}, "Waits"), this.waits);
    this.element = el("div", { "data-view": "client" }, el("p", {}, el("a", { href: "#/clients" }, "← All clients")),
      el("div", { class: "head" }, this.title), el("p", { class: "why mono" }, id), this.empty, this.body);
  }

  show(view) {
    const row = view.row;
    this.empty.hidden = row !== null;
    this.body.hidden = row === null;
    if (row === null) return;
    text(this.title, row.who);
    setFacts(this.facts, [
      ["Program", row.program],
      ["Version", row.version],
      ["Since", row.since ? `${clock(row.since)} ${age(row.since)}` : null],
      ["Holds", number(row.holds)],
      ["Waits", row.announced ? waits(row) || "none" : null],
      ["Lost", row.announced ? number(row.lost) : null],
    ]);
    fillPart(this.holds, HOLDS, view.holds, (hold) => `${hold.raw} ${hold.name}`);
    fillPart(this.waits, WAITS, view.waits, (wait) => `${wait.raw} ${wait.name}`);
  }
}
