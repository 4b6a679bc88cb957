// The cells of tables. Each has `make`, which is called once for a row, and `set`, which is called for each snapshot.

import { attribute, bar, clock, duration, el, number, setBar, text } from "./dom.js";

const NONE = "–";

export const plain = (value) => ({ make: () => el("span"), set: (cell, row) => words(cell, value(row)) });

function words(cell, value) {
  const nothing = value === "" || value === null || value === undefined;
  text(cell, nothing ? NONE : value);
  cell.classList.toggle("none", nothing);
}

export const counted = (value) => ({
  make: () => el("span"),
  set: (cell, row) => { const found = value(row); words(cell, found ? number(found) : ""); },
});

export const objectLink = {
  make: (row) => el("a", { href: lockAddress(row.name) }, shown(row.name)),
  set: () => {},
};

export const kind = {
  make: () => el("span", { class: "kind" }),
  set: (cell, row) => {
    text(cell, row.kind);
    attribute(cell, "data-kind", row.kind);
    attribute(cell, "data-guessed", row.certain === false ? "" : null);
    attribute(cell, "title", row.certain === false ? "The kind is a guess: the page of the lock says why" : null);
  },
};

export const holder = {
  make: () => el("span"),
  set: (cell, row) => {
    if (!row.held) {
      text(cell, "free");
      cell.classList.add("none");
    } else if (row.client === null) {
      words(cell, row.holder);
    } else if (cell.firstElementChild === null || cell.dataset.client !== row.client || cell.textContent !== row.holder) {
      cell.classList.remove("none");
      cell.dataset.client = row.client;
      cell.replaceChildren(el("a", { href: clientAddress(row.client) }, row.holder));
    }
  },
};

export const clientLink = {
  make: () => el("span"),
  set: (cell, row) => {
    const id = row.client ?? row.id;
    if (cell.dataset.client === `${id} ${row.who}`) return;
    cell.dataset.client = `${id} ${row.who}`;
    cell.replaceChildren(id ? el("a", { href: clientAddress(id) }, row.who) : row.who);
  },
};

export const since = {
  make: () => el("span", {}, el("span"), " ", el("span", { class: "sub" })),
  set: (cell, row) => {
    const [moment, ago] = cell.children;
    words(moment, row.since ? clock(row.since) : "");
    text(ago, row.since ? age(row.since) : "");
  },
};

export const ttl = { make: () => bar("ttl"), set: (cell, row) => setBar(cell, row.ttl, row.scale) };

export const waiters = plain(waiting);

export const use = {
  make: () => bar("use"),
  set: (cell, row) => {
    const [track, left] = cell.children;
    track.hidden = row.permits === null;
    if (row.permits === null) { text(left, NONE); return; }
    const part = row.permits > 0 ? Math.min(1, row.owners / row.permits) : 1;
    track.firstElementChild.style.transform = `scaleX(${part.toFixed(4)})`;
    attribute(track.firstElementChild, "data-full", part >= 1 ? "true" : null);
    text(left, `${number(row.owners)} of ${number(row.permits)}`);
  },
};

export const place = plain((row) => (row.place === null ? row.side : number(row.place)));
export const levels = plain((row) => (row.kept ? "kept for a while" : `${row.side ? `${row.side}s, ` : ""}${row.levels} ${row.levels === 1 ? "level" : "levels"}`));
export const raw = { make: () => el("span", { class: "mono" }), set: (cell, row) => text(cell, shown(row.raw)) };
export const alive = {
  make: () => el("span", {}, el("i", { class: "live", "aria-hidden": "true" }), el("span")),
  set: (cell, row) => {
    attribute(cell.firstChild, "data-alive", row.alive);
    text(cell.lastChild, row.alive === null ? "unknown (Redisson)" : row.alive ? "waits" : "no sign of life");
  },
};
export const lasts = plain((row) => (row.lasts === null ? "" : duration(row.lasts)));

// --- Words

export function waiting(row) {
  if (row.waiters) return `${number(row.waiters)} in line`;
  return row.listeners ? `${number(row.listeners)} ${row.listeners === 1 ? "client" : "clients"}` : "";
}

export function waits(row) {
  return row.waits ? `${number(row.waits)}, ${duration(row.waited / row.waits)} on average` : "";
}

// --- Addresses

function lockAddress(name) {
  return `#/lock?name=${encodeURIComponent(name)}`;
}

function clientAddress(id) {
  return `#/client?name=${encodeURIComponent(id)}`;
}

// What makes text run backwards or vanish would make one name look like another.
export function shown(name) {
  return name.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g,
    (sign) => `\\u${sign.codePointAt(0).toString(16).padStart(4, "0")}`);
}

export function age(moment) {
  const seconds = Math.max(0, (Date.now() - Date.parse(moment)) / 1000);
  return seconds < 120 ? `(${Math.floor(seconds)} s)` : `(${duration(seconds)})`;
}
