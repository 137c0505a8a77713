// Helpers of all parts of the page: creating elements, formatting numbers and times, and colors. Texts only ever become
// text nodes and attributes, so that no name or caption can inject markup.
"use strict";

const quintet = {};

(function () {
  /** Create an element. `on` + event attributes are listeners; null, undefined and false are omitted. */
  function make(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name === "class") element.className = value;
      else if (name in element && typeof value !== "string") element[name] = value;
      else element.setAttribute(name, value === true ? "" : String(value));
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
    return element;
  }

  function number(value, digits = 4) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-4)) return value.toExponential(2);
    return String(Number(value.toPrecision(digits)));
  }

  function integer(value) {
    return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en").replaceAll(",", " ");
  }

  function duration(seconds) {
    if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
    const minutes = Math.round(seconds / 60);
    if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`;
    if (minutes < 60) return `${minutes} min`;
    if (minutes < 60 * 48) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")}`;
    return `${Math.round(minutes / 1440)} days`;
  }

  function ago(seconds) {
    return seconds === null || seconds === undefined ? "–" : `${duration(Date.now() / 1000 - seconds)} ago`;
  }

  function size(bytes) {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let unit = 0;
    while (bytes >= 1000 && unit < units.length - 1) { bytes /= 1000; unit += 1; }
    return `${number(bytes, 3)} ${units[unit]}`;
  }

  function rate(stepsPerSecond) {
    if (!stepsPerSecond) return "–";
    return stepsPerSecond >= 1 ? `${number(stepsPerSecond, 3)} steps/s` : `${number(1 / stepsPerSecond, 3)} s/step`;
  }

  /** The time left of a run; in its first steps an estimate. */
  function timeLeft(run) {
    if (run.left === null) return run.estimating ? "estimating" : null;
    return `${run.estimating ? "about " : ""}${duration(run.left)}`;
  }

  /** Items, tokens and FLOPs per second, and the fraction of the peak, as far as they are known. */
  function perSecond(rates) {
    const prefixed = (value, space = "") => {
      const prefixes = ["", "k", "M", "G", "T", "P"];
      let prefix = 0;
      while (value >= 1000 && prefix < prefixes.length - 1) { value /= 1000; prefix += 1; }
      return `${number(value, 3)}${space}${prefixes[prefix]}`;
    };
    const { items_per_second: items, tokens_per_second: tokens, flops_per_second: flops, mfu } = rates;
    const peak = mfu ? ` (${number(100 * mfu, 2)} % of peak)` : "";
    return [items && `${number(items, 3)} items/s`, tokens && `${prefixed(tokens)} tokens/s`, flops && `${prefixed(flops, " ")}FLOP/s${peak}`].filter(Boolean);
  }

  function badge(state, note) {
    return make("span", { class: `badge ${state}`, title: note || null }, state);
  }

  /** Show a problem at the top of the page; an empty text removes it. */
  function notice(text) {
    const box = document.getElementById("notice");
    box.replaceChildren(...(text ? [make("p", {}, text, make("button", { type: "button", class: "quiet", "aria-label": "Close", onclick: () => notice("") }, "×"))] : []));
  }

  /** Read or store a setting; a page opened from a file may have no storage. */
  function remember(name, value) {
    try {
      if (value === undefined) return localStorage.getItem(`quintet.${name}`);
      localStorage.setItem(`quintet.${name}`, value);
    } catch { /* no storage */ }
    return value ?? null;
  }

  /** Call `then` once, when the element first scrolls near the viewport. */
  const waiting = new WeakMap();
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const then = waiting.get(entry.target);
      if (entry.isIntersecting && then) {
        waiting.delete(entry.target);
        observer.unobserve(entry.target);
        then();
      }
    }
  }, { rootMargin: "300px" });
  function whenSeen(element, then) {
    waiting.set(element, then);
    observer.observe(element);
  }

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  const STOPS = [[8, 6, 24], [58, 15, 92], [140, 41, 99], [222, 82, 62], [250, 163, 42], [252, 253, 191]];

  /** The color of a level from 0 (dark) to 1 (bright): red, green and blue. */
  function heat(level) {
    const at = Math.max(0, Math.min(0.999, level)) * (STOPS.length - 1);
    const [from, to, part] = [STOPS[Math.floor(at)], STOPS[Math.ceil(at)], at % 1];
    return from.map((value, index) => Math.round(value + (to[index] - value) * part));
  }

  Object.assign(quintet, { make, number, integer, duration, timeLeft, ago, size, rate, perSecond, badge, notice, remember, whenSeen, colour, heat });
})();
