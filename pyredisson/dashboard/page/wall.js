// A screen on a wall: four large numbers, the most contended locks, and the clients that have lost holds. It has no controls.

import { counted, kind, plain, shown, since } from "./cells.js";
import { el, number, text } from "./dom.js";
import { fill, table } from "./views.js";

const LOCKS = [["name", "Lock", plain((row) => shown(row.name)), "name"], ["kind", "Kind", kind], ["holder", "Holder", plain((row) => row.holder)],
  ["since", "Held since", since], ["waiting", "Waiting", counted((row) => row.waiting), "number"]];
const CLIENTS = [["who", "Client", plain((row) => row.who)], ["program", "Program", plain((row) => row.program)], ["lost", "Lost", counted((row) => row.lost), "number"]];
const NUMBERS = [["held", "Held locks"], ["waiting", "Waiting"], ["lost", "Lost holds"], ["deadlocks", "Deadlocks"]];

export class WallPage {
  constructor() {
    this.numbers = NUMBERS.map(([key, title]) => el("div", { "data-number": key }, el("dt", {}, title), el("dd")));
    this.locks = table("The most contended locks", LOCKS);
    this.clients = table("Clients that have lost holds", CLIENTS);
    this.element = el("div", { "data-view": "wall" }, el("dl", { class: "numbers values" }, ...this.numbers),
      el("div", { class: "boards" }, el("div", {}, el("h2", {}, "The most contended locks"), this.locks), el("div", {}, el("h2", {}, "Clients that have lost holds"), this.clients)));
  }

  show(view, totals) {
    [totals.locks, totals.waiting, view.lost, totals.deadlocks.length].forEach((value, at) => {
      text(this.numbers[at].lastChild, number(value));
      this.numbers[at].classList.toggle("bad", at >= 2 && value > 0);
    });
    this.locks.parentElement.hidden = view.rows.length === 0;
    this.clients.parentElement.hidden = view.clients.length === 0;
    fill(this.locks, LOCKS, view.rows, (row) => row.name);
    fill(this.clients, CLIENTS, view.clients, (row) => row.id);
  }
}
