// Navigation: the URL selects the content, #/ for the list of runs and #/run/NAME/TAB for a run.
"use strict";

(function () {
  const { make, source, attempt, notice, remember } = quintet;
  const main = document.getElementById("main");
  const breadcrumb = document.getElementById("where");
  let shown = null;
  let current = "";

  quintet.addressOf = (id, tab) => `#/run/${encodeURIComponent(id)}${tab ? `/${tab}` : ""}`;

  async function go() {
    const [, kind, id, tab] = location.hash.split("/");
    const next = kind === "run" ? decodeURIComponent(id || "") : "";
    if (shown && next === current) {
      if (next && tab) shown.open(tab);
      return;
    }
    shown?.close();
    shown = null;
    current = next;
    notice("");
    const found = await attempt(source.runs());
    const about = next && found ? await attempt(source.run(next)) : null;
    if (next !== current) return;
    if (!found || (next && !about)) {
      main.replaceChildren(make("p", { class: "empty" }, "Nothing to show. ", make("a", { href: "#/" }, "All runs")));
      return;
    }
    shown = next ? new quintet.RunPage(next, about, found.runs.map((run) => run.id), tab) : new quintet.List(found);
    breadcrumb.replaceChildren(...(next ? [make("a", { href: "#/" }, "All runs")] : []));
    document.title = next ? `${next} · quintet` : "quintet";
    main.replaceChildren(shown.panel);
    scrollTo(0, 0);
    if (!next && found.runs.length === 1 && !source.live) location.replace(quintet.addressOf(found.runs[0].id));
  }

  // --- dark and light -----------------------------------------------------------------------------------------

  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  function paint() {
    const dark = remember("theme") ? remember("theme") === "dark" : system.matches;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    theme.textContent = dark ? "☀ Light" : "☾ Dark";
    shown?.curves?.redraw();
  }
  theme.addEventListener("click", () => { remember("theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark"); paint(); });
  system.addEventListener("change", paint);

  document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
  addEventListener("hashchange", go);
  paint();
  go();
})();
