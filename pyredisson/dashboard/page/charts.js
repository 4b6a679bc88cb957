// Small charts of the last minutes. Each point is [time, held, waiting, clients, waits, waited, lost].

import { attribute, clock, duration, el, number, svg, text } from "./dom.js";

const MINUTES = 5;
const WIDTH = 300;
const HEIGHT = 46;
const BAR_SECONDS = 10; // clients announce what they count every ten seconds, unless they are told otherwise

const CHARTS = [
  { title: "Held", field: 1, kind: "line", words: (now) => `${number(now)} holds of locks and permits` },
  { title: "Waiting", field: 2, kind: "line", words: (now) => `${number(now)} waiting` },
  { title: "Waits", field: 4, kind: "bars", words: (now) => `${number(now)} calls had to wait` },
  { title: "Losses", field: 6, kind: "bars", tone: "bad", words: (now) => `${number(now)} holds were lost` },
];

export class Charts {
  constructor(parent) {
    this.points = [];
    this.charts = CHARTS.map((chart) => new Chart(chart));
    parent.append(...this.charts.map((chart) => chart.element));
  }

  add(points, time) {
    const latest = this.points.length ? this.points[this.points.length - 1][0] : 0;
    this.points.push(...points.filter((point) => point[0] > latest));
    this.points = this.points.filter((point) => point[0] > time - MINUTES * 60);
    for (const chart of this.charts) chart.draw(this.points, time);
  }
}

class Chart {
  constructor(settings) {
    this.settings = settings;
    this.now = el("div", { class: "now" });
    this.side = el("span");
    this.area = svg("path", { class: settings.kind === "line" ? "area" : "bars" });
    this.curve = svg("path", { class: "curve" });
    this.svg = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("line", { class: "base", x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT }), this.area, this.curve);
    this.tip = el("div", { class: "tip", hidden: true });
    this.element = el("figure", { class: "chart", role: "img", "data-tone": settings.tone, "data-chart": settings.title },
      el("div", { class: "caption" }, el("span", {}, settings.title), this.side), this.now, this.svg,
      el("div", { class: "axis", "aria-hidden": "true" }, el("span", {}, `${MINUTES} min ago`), el("span", {}, "now")), this.tip);
    this.element.addEventListener("pointermove", (event) => this.point(event));
    this.element.addEventListener("pointerleave", () => { this.tip.hidden = true; });
  }

  draw(points, time) {
    const { kind, field, words } = this.settings;
    this.time = time;
    this.values = kind === "line" ? points.map((point) => [point[0], point[field]]) : sums(points, field, time);
    const most = Math.max(0, ...this.values.map((value) => value[1]));
    const total = points.reduce((sum, point) => sum + point[field], 0);
    const now = kind === "line" ? (points.length ? points[points.length - 1][field] : 0) : total;
    text(this.now, number(now));
    text(this.side, this.aside(points, most, total));
    const scale = Math.max(most, kind === "line" ? 4 : 3) * 1.05;
    if (kind === "line") this.line(scale);
    else this.bars(scale);
    this.element.classList.toggle("some", total > 0);
    const last = kind === "line" ? `at most ${number(most)} in the last ${MINUTES} minutes` : `in the last ${MINUTES} minutes`;
    attribute(this.element, "aria-label", `${this.settings.title}: ${words(now)}, ${last}`);
  }

  aside(points, most, total) {
    if (this.settings.kind === "line") return `at most ${number(most)}`;
    if (this.settings.field !== 4) return `in ${MINUTES} min`;
    const waited = points.reduce((sum, point) => sum + point[5], 0);
    return total ? `${duration(waited / total)} on average` : `in ${MINUTES} min`;
  }

  x(time) {
    return WIDTH * (1 - (this.time - time) / (MINUTES * 60));
  }

  line(scale) {
    const steps = this.values.slice(1).map((value, at) => value[0] - this.values[at][0]).sort((one, two) => one - two);
    // Nothing was read for a while: the curve has a gap there. The median isn't moved by a few gaps.
    const gap = 3 * Math.max(1, steps[Math.floor(steps.length / 2)] ?? 0);
    const stretches = [];
    this.values.forEach(([time, value], at) => {
      if (at === 0 || time - this.values[at - 1][0] > gap) stretches.push([]);
      stretches.at(-1).push([this.x(time).toFixed(1), (HEIGHT * (1 - value / scale)).toFixed(1)]);
    });
    // In the text of an array a point is "x,y".
    const curves = stretches.map((points) => `M${points.join("L")}`);
    const areas = stretches.map((points, at) => `${curves[at]}L${points.at(-1)[0]},${HEIGHT}L${points[0][0]},${HEIGHT}Z`);
    this.curve.setAttribute("d", curves.join(""));
    this.area.setAttribute("d", areas.join(""));
  }

  bars(scale) {
    const width = (WIDTH * BAR_SECONDS) / (MINUTES * 60);
    const bars = this.values.filter((value) => value[1] > 0).map(([time, value]) => {
      const left = Math.max(0, this.x(time));
      const top = HEIGHT * (1 - value / scale);
      return `M${(left + 1).toFixed(1)},${HEIGHT}V${top.toFixed(1)}H${Math.min(left + width - 1, WIDTH).toFixed(1)}V${HEIGHT}Z`;
    });
    this.area.setAttribute("d", bars.join(""));
  }

  point(event) {
    if (!this.values || !this.values.length) return;
    const box = this.svg.getBoundingClientRect();
    const time = this.time - (1 - (event.clientX - box.left) / box.width) * MINUTES * 60;
    const nearest = this.values.reduce((best, value) => (Math.abs(value[0] - time) < Math.abs(best[0] - time) ? value : best));
    this.tip.hidden = false;
    text(this.tip, `${number(nearest[1])} at ${clock(nearest[0] * 1000)}`);
  }
}

// Sums over stretches whose ends don't move with the time.
function sums(points, field, time) {
  const first = Math.floor((time - MINUTES * 60) / BAR_SECONDS) * BAR_SECONDS;
  const found = [];
  for (let begin = first; begin <= time; begin += BAR_SECONDS) found.push([begin, 0]);
  for (const point of points) {
    const at = Math.floor((point[0] - first) / BAR_SECONDS);
    if (found[at]) found[at][1] += point[field];
  }
  return found;
}
