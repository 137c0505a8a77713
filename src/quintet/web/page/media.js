// Card of one sample: an image, audio, a video or a mesh, with its caption. Its content can be replaced, so that cards
// keep their positions while the slider moves through training.
"use strict";

(function () {
  const { make, source, whenSeen } = quintet;

  function captionOf(entry) {
    const parts = [entry.what, entry.text, entry.columns, entry.rows && `rows: ${entry.rows}`, entry.text ? null : entry.item].filter(Boolean);
    return parts.length ? parts.join(" · ") : entry.file;
  }

  function enlarge(address, caption) {
    const dialog = make("dialog", { class: "large", "aria-label": caption, onclick: () => dialog.close(), onclose: () => dialog.remove() },
      make("img", { src: address, alt: caption }), make("p", {}, caption, make("button", { type: "button" }, "Close")));
    document.body.append(dialog);
    dialog.showModal();
  }

  // `show` is asynchronous: when its bytes arrive, the slider may have moved, and `isCurrent` returns false.
  const kinds = {
    image(caption, entry) {
      const image = make("img", { alt: caption, loading: "lazy", decoding: "async" });
      // Small samples are enlarged with visible pixels; overview images contain text and are not.
      const isSample = Boolean(entry.what || entry.text || entry.item || entry.columns || entry.rows);
      image.addEventListener("load", () => image.classList.toggle("small", isSample && image.naturalWidth < 400));
      const button = make("button", { type: "button", class: "image", "aria-label": `Enlarge: ${caption}`, onclick: () => enlarge(image.src, caption) }, image);
      return { element: button, loads: image, async show(address) { image.src = address; } };
    },
    video(caption) {
      const video = make("video", { controls: true, loop: true, muted: true, autoplay: true, preload: "metadata", "aria-label": caption });
      video.setAttribute("playsinline", "");
      video.addEventListener("loadedmetadata", () => video.classList.toggle("small", video.videoWidth < 400));
      return { element: video, loads: video, async show(address) { video.src = address; } };
    },
    audio(caption) {
      const player = quintet.audio.player(caption);
      return { element: player.element, async show(address, isCurrent) {
        const bytes = await source.bytes(address);
        if (!isCurrent()) return;
        const url = source.live ? address : URL.createObjectURL(new Blob([bytes], { type: "audio/wav" }));
        await player.show(url, bytes, isCurrent);
      } };
    },
    mesh(caption) {
      const viewer = quintet.mesh.viewer(caption);
      return { element: viewer.canvas, async show(address, isCurrent) {
        const bytes = await source.bytes(address);
        if (isCurrent()) viewer.show(bytes);
      } };
    },
  };

  /** A card for an entry; `address` is the URL of its file. */
  function card(entry, address) {
    const caption = captionOf(entry);
    const part = kinds[entry.kind](caption, entry);
    const problem = make("p", { class: "problem", hidden: true });
    const label = make("figcaption", {}, make("span", { class: "caption" }, caption));
    const listed = entry.texts || entry.items;
    if (listed && listed.length) {
      label.append(make("details", {}, make("summary", {}, entry.texts ? `${listed.length} captions` : `${listed.length} items`), make("ol", {}, listed.map((text) => make("li", {}, text)))));
    }
    const figure = make("figure", { class: `card of-${entry.kind}${entry.kind === "image" && !entry.text && !entry.item ? " sheet" : ""}` }, part.element, problem, label);
    const fail = (text) => {
      problem.hidden = !text;
      problem.textContent = text;
      part.element.classList.toggle("absent", Boolean(text));
    };
    if (part.loads) part.loads.addEventListener("error", () => fail(`${entry.file} is missing or cannot be shown`));
    const result = {
      figure,
      show(next, url) {
        if (figure.dataset.address === url) return;
        figure.dataset.address = url;
        fail(next.missing ? `${next.file} is missing` : url ? "" : `${next.file} is not included in this page`);
        if (next.missing || !url) return;
        const isCurrent = () => figure.dataset.address === url;
        whenSeen(figure, () => { if (isCurrent()) part.show(url, isCurrent).catch((error) => { if (isCurrent()) fail(error.message); }); });
      },
    };
    result.show(entry, address);
    return result;
  }

  quintet.media = { card, captionOf };
})();
