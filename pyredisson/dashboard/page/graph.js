// Which owners wait for which locks, and who holds these: a picture with owners on the left and locks on the right, and a table.

import { clientLink, objectLink, plain, raw, shown, since } from "./cells.js";
import { el, number, svg, text } from "./dom.js";
import { fill, table } from "./views.js";

const WIDTH = 900;
const BOX = { width: 300, height: 40 };
const STEP = 56; // from one box to the next one below it
const MOST_SIGNS = 38; // of a text in a box

const COLUMNS = [["who", "Owner", clientLink], ["raw", "Id of the owner", raw],
  ["what", "Does", plain((row) => `${row.what === "holds" ? "holds" : "waits for"}${row.side ? ` (${row.side}s)` : ""}`)],
  ["name", "Lock", objectLink, "name"], ["since", "Since", since], ["deadlock", "Deadlock", plain((row) => (row.deadlock ? "yes" : ""))]];

export class GraphPage {
  constructor() {
    this.note = el("p", { class: "why", role: "status" });
    this.picture = el("div", { class: "card graph values", role: "group", "aria-label": "The graph", tabindex: "0" });
    this.card = table("Holds and waits", COLUMNS);
    this.body = el("div", {}, this.picture, el("h3", {}, "The same as a table"), this.card);
    this.empty = el("div", { class: "card empty" }, el("strong", {}, "Nobody waits"), el("span", {}, "A wait is shown once it has lasted for a second or two."));
    this.element = el("div", { "data-view": "graph" }, el("h2", {}, "Waits for locks"), this.note, this.empty, this.body);
  }

  show(view) {
    this.empty.hidden = view.edges.length > 0;
    this.body.hidden = !this.empty.hidden;
    text(this.note, view.left_out ? `${number(view.edges.length)} of ${number(view.edges.length + view.left_out)} holds and waits are shown, deadlocks first.` : "");
    // An unchanged picture stays the same, so that a tip of the mouse stays.
    const drawn = JSON.stringify(view.edges.map((edge) => [edge.owner, edge.who, edge.lock, edge.name, edge.waiting, edge.what, edge.deadlock]));
    if (drawn !== this.drawn) this.picture.replaceChildren(draw(view.edges));
    this.drawn = drawn;
    fill(this.card, COLUMNS, view.edges, (edge) => `${edge.raw} ${edge.what} ${edge.lock}`);
  }
}

function draw(edges) {
  const locks = nodes(edges, (edge) => edge.lock, (edge) => [shown(edge.name), edge.waiting === 1 ? "1 waits" : `${number(edge.waiting)} wait`]);
  const owners = nodes(edges, (edge) => edge.owner, (edge) => [edge.who, shown(edge.owner).replace(/^([^:]{8})[^:]+/, "$1…")]);
  // Each owner is beside the locks that it holds or waits for, so that fewer lines cross.
  const heights = new Map([...owners.keys()].map((key) => {
    const found = edges.filter((edge) => edge.owner === key).map((edge) => locks.get(edge.lock).at);
    return [key, found.reduce((sum, at) => sum + at, 0) / found.length];
  }));
  [...owners.keys()].sort((one, other) => heights.get(one) - heights.get(other)).forEach((key, at) => { owners.get(key).at = at; });
  const height = STEP * Math.max(owners.size, locks.size) + 16;
  const words = edges.map((edge) => `${edge.who} ${edge.what === "holds" ? "holds" : "waits for"} ${shown(edge.name)}${edge.deadlock ? " (deadlock)" : ""}`);
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-labelledby": "graph-title graph-text" },
    svg("title", { id: "graph-title" }, "Owners on the left, locks on the right"), svg("desc", { id: "graph-text" }, `${words.join("; ")}.`),
    svg("defs", {}, ...["holds", "waits", "deadlock"].map((kind) => svg("marker", { id: `end-${kind}`, class: kind, viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 9, markerHeight: 9,
      markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { d: "M0 0L8 4L0 8Z" })))),
    ...edges.map((edge) => line(edge, owners.get(edge.owner), locks.get(edge.lock))),
    ...[...owners.values()].map((node) => box(node, 0)), ...[...locks.values()].map((node) => box(node, WIDTH - BOX.width)));
}

function nodes(edges, keyOf, linesOf) {
  const found = new Map();
  for (const edge of edges) {
    const known = found.get(keyOf(edge)) ?? { at: found.size, lines: linesOf(edge), deadlock: false };
    known.deadlock ||= edge.deadlock;
    found.set(keyOf(edge), known);
  }
  return found;
}

// An arrow to the lock: the owner waits for it. From the lock: the lock is with its holder.
function line(edge, owner, lock) {
  const holds = edge.what === "holds";
  const [left, right, shift] = [BOX.width, WIDTH - BOX.width, holds ? -6 : 6];
  const points = [[left, middle(owner) + shift], [right, middle(lock) + shift]];
  const [[x, y], [toX, toY]] = holds ? points.reverse() : points;
  return svg("path", { class: `edge ${edge.what}${edge.deadlock ? " deadlock" : ""}`, d: `M${x} ${y}C${WIDTH / 2} ${y} ${WIDTH / 2} ${toY} ${toX} ${toY}`, "marker-end": `url(#end-${edge.deadlock ? "deadlock" : edge.what})` },
    svg("title", {}, `${edge.who} ${holds ? "holds" : "waits for"} ${shown(edge.name)}`));
}

function middle(node) {
  return 8 + node.at * STEP + BOX.height / 2;
}

function box(node, x) {
  const top = middle(node) - BOX.height / 2;
  const cut = (words) => (words.length > MOST_SIGNS ? `${words.slice(0, MOST_SIGNS - 1)}…` : words);
  return svg("g", { class: node.deadlock ? "node deadlock" : "node" }, svg("title", {}, node.lines.join(", ")),
    svg("rect", { x, y: top, width: BOX.width, height: BOX.height, rx: 8 }),
    svg("text", { x: x + 12, y: top + 17 }, cut(node.lines[0])), svg("text", { x: x + 12, y: top + 33, class: "sub" }, cut(node.lines[1])));
}
