// Makes and updates elements. Names of locks are foreign text: they only ever become text nodes and attributes.

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function text(element, value) {
  // An unchanged text stays the same node, so that what a user has selected stays selected.
  const wanted = String(value);
  if (element.textContent !== wanted) element.textContent = wanted;
}

export function attribute(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

// Makes the children of `parent` the elements of `items`, in their order. Children that stay keep their element, and the focus.
export function sync(parent, items, keyOf, make, update) {
  // Two names that are no text may look the same: each key has a list of its children.
  const before = new Map();
  for (const child of parent.children) before.set(child.dataset.key, [...(before.get(child.dataset.key) ?? []), child]);
  let next = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = before.get(key)?.shift();
    if (child === undefined) {
      child = make(item);
      child.dataset.key = key;
    }
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
    update(child, item);
  }
  for (const child of Array.from(before.values()).flat()) child.remove();
}

// --- What a browser remembers. If its user forbids that, the page begins anew when it is loaded again.

export function stored(storage, key) {
  try {
    return window[storage].getItem(key);
  } catch {
    return null;
  }
}

export function store(storage, key, value) {
  try {
    if (value === null) window[storage].removeItem(key);
    else window[storage].setItem(key, value);
  } catch {
    // Forbidden.
  }
}

// --- Words

export function number(value) {
  return value === null || value === undefined ? "–" : Number(value).toLocaleString("en");
}

export function duration(seconds) {
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 99.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

function remaining(seconds) {
  return seconds < 99.95 ? `${seconds.toFixed(1)} s` : duration(seconds);
}

export function clock(moment) {
  const date = new Date(moment);
  const time = date.toLocaleTimeString("en-GB");
  return date.toDateString() === new Date().toDateString() ? time : `${date.toISOString().slice(0, 10)} ${time}`;
}

// --- Bars. The bars of leases drain between two snapshots.

const bars = new WeakMap();

// `kind`: "ttl" of a lease, "use" of a semaphore.
export function bar(kind) {
  return el("div", { class: `bar ${kind}` }, el("span", { class: "track", "aria-hidden": "true" }, el("i")), el("span", { class: "left" }));
}

export function setBar(element, left, scale) {
  const known = bars.get(element);
  const now = performance.now();
  if (known !== undefined && left > known.left - (now - known.at) / 1000 + 0.5 && known.left >= 0) {
    element.classList.remove("renewed");
    void element.offsetWidth; // the animation begins anew
    element.classList.add("renewed");
  }
  bars.set(element, { left, scale, at: now });
  drawBar(element, now);
}

function drawBar(element, now) {
  const known = bars.get(element);
  const [track, words] = element.children;
  const endless = known !== undefined && known.left < 0;
  track.hidden = known === undefined || known.left === null || endless;
  if (track.hidden) {
    text(words, endless ? "no lease" : "–");
    return;
  }
  const left = Math.max(0, known.left - (now - known.at) / 1000);
  const part = known.scale > 0 ? Math.min(1, left / known.scale) : 0;
  track.firstElementChild.style.transform = `scaleX(${part.toFixed(4)})`;
  attribute(element, "data-level", part < 0.1 ? "out" : part < 0.35 ? "low" : null);
  text(words, remaining(left));
}

export function drawBars() {
  const now = performance.now();
  for (const element of document.querySelectorAll(".ttl")) drawBar(element, now);
}
