// Playground: sends a text and a few settings to the server and shows the generated samples; one job at a time.
"use strict";

(function () {
  const { make, source, notice, duration } = quintet;
  const LONGEST_TEXT = 500;

  function panel(id, about) {
    const { guidance_scale: guidance, steps } = about.playground;
    const field = (label, attributes) => { const input = make("input", { type: "number", ...attributes }); return [make("label", {}, label, input), input]; };
    const text = make("textarea", { rows: "2", maxlength: String(LONGEST_TEXT), placeholder: "Prompt" });
    const [seedLabel, seed] = field("Seed", { value: "0", min: "0", max: "2147483647", step: "1" });
    const [numLabel, num] = field("Number", { value: "4", min: "1", max: "8", step: "1" });
    const [guidanceLabel, strength] = field("Guidance scale", { value: String(guidance ?? 1), min: "0", max: "100", step: "any" });
    const [stepsLabel, count] = field("Steps", { value: String(steps ?? ""), min: "1", max: "1000", step: "1" });
    const button = make("button", { type: "submit", class: "main" }, "Generate");
    const status = make("p", { role: "status" });
    const results = make("div", {});
    const form = make("form", { class: "try", onsubmit: (event) => { event.preventDefault(); send(); } },
      make("label", { class: "wide" }, "Text", text),
      make("div", { class: "tools" }, seedLabel, numLabel, guidance !== null && guidanceLabel, steps !== null && stepsLabel, button), status);

    async function send() {
      button.disabled = true;
      notice("");
      const started = Date.now();
      const settings = { text: text.value, seed: Number(seed.value), num: Number(num.value) };
      if (guidance !== null && strength.value) settings.guidance_scale = Number(strength.value);
      if (steps !== null && count.value) settings.steps = Number(count.value);
      try {
        let job = await source.generate(id, settings);
        while (job.state === "working") {
          status.textContent = `Generating for ${duration((Date.now() - started) / 1000)}; the first job takes longer, because the model is loaded.`;
          await new Promise((resolve) => setTimeout(resolve, 500));
          job = await source.job(job.job);
        }
        status.textContent = job.state === "done" ? `Generated in ${duration((Date.now() - started) / 1000)}.` : job.message;
        if (job.state === "done") show(job, settings);
      } catch (error) {
        status.textContent = error.message;
      }
      button.disabled = false;
    }

    function show(job, settings) {
      const single = job.entries.filter((entry) => !entry.texts);
      const entries = [...single, ...job.entries.filter((entry) => entry.texts)];
      const description = Object.entries(settings).filter(([name]) => name !== "text").map(([name, value]) => `${name} ${value}`).join(", ");
      results.prepend(make("section", {}, make("h3", {}, settings.text || "no text"), make("p", {}, description),
        make("div", { class: "samples" }, entries.map((entry) => quintet.media.card(entry, source.generated(job.job, entry.file)).figure))));
    }

    return make("div", {}, form, results);
  }

  quintet.playground = { panel };
})();
