// Owns one sample on the page, whatever it is: a picture, a sound, a video or a mesh, with its caption. Its content
// can be changed, so that a slot stays where it is while the slider moves through training.
"use strict";

(function () {
  const { make, source, whenSeen } = quintet;

  function captionOf(entry) {
    const parts = [entry.what, entry.text, entry.columns, entry.rows && `row by row: ${entry.rows}`, entry.text ? null : entry.item].filter(Boolean);
    return parts.length ? parts.join(" · ") : entry.file;
  }

  function enlarge(address, caption) {
    const dialog = make("dialog", { class: "large", "aria-label": caption, onclick: () => dialog.close(), onclose: () => dialog.remove() },
      make("img", { src: address, alt: caption }), make("p", {}, caption, make("button", { type: "button" }, "Close")));
    document.body.append(dialog);
    dialog.showModal();
  }

  // What `show` has to wait for may come when the slider is elsewhere already: then it is no longer `wanted`.
  const kinds = {
    image(caption, entry) {
      const image = make("img", { alt: caption, loading: "lazy", decoding: "async" });
      // Pixels of samples are worth seeing; a drawing that only sums them up has words in it, which they would spoil.
      const isSample = Boolean(entry.what || entry.text || entry.item || entry.columns || entry.rows);
      image.addEventListener("load", () => image.classList.toggle("small", isSample && image.naturalWidth < 400));
      const button = make("button", { type: "button", class: "picture", "aria-label": `Enlarge: ${caption}`, onclick: () => enlarge(image.src, caption) }, image);
      return { place: button, watched: image, async show(address) { image.src = address; } };
    },
    video(caption) {
      const video = make("video", { controls: true, loop: true, muted: true, autoplay: true, preload: "metadata", "aria-label": caption });
      video.setAttribute("playsinline", "");
      video.addEventListener("loadedmetadata", () => video.classList.toggle("small", video.videoWidth < 400));
      return { place: video, watched: video, async show(address) { video.src = address; } };
    },
    sound(caption) {
      const player = quintet.sound.player(caption);
      return { place: player.place, async show(address, wanted) {
        const bytes = await source.bytes(address);
        if (!wanted()) return;
        const url = source.live ? address : URL.createObjectURL(new Blob([bytes], { type: "audio/wav" }));
        await player.show(url, bytes, wanted);
      } };
    },
    mesh(caption) {
      const viewer = quintet.mesh.viewer(caption);
      return { place: viewer.canvas, async show(address, wanted) {
        const bytes = await source.bytes(address);
        if (wanted()) viewer.show(bytes);
      } };
    },
  };

  /** A card for an entry; `address` says where the file is. */
  function card(entry, address) {
    const caption = captionOf(entry);
    const part = kinds[entry.kind](caption, entry);
    const said = make("p", { class: "said", hidden: true });
    const label = make("figcaption", {}, make("span", { class: "caption" }, caption));
    const listed = entry.texts || entry.items;
    if (listed && listed.length) {
      label.append(make("details", {}, make("summary", {}, entry.texts ? `${listed.length} captions` : `${listed.length} items`), make("ol", {}, listed.map((text) => make("li", {}, text)))));
    }
    const figure = make("figure", { class: `card of-${entry.kind}${entry.kind === "image" && !entry.text && !entry.item ? " sheet" : ""}` }, part.place, said, label);
    const fail = (text) => {
      said.hidden = !text;
      said.textContent = text;
      part.place.classList.toggle("absent", Boolean(text));
    };
    if (part.watched) part.watched.addEventListener("error", () => fail(`${entry.file} is missing or cannot be shown`));
    const result = {
      figure,
      show(next, where) {
        if (figure.dataset.address === where) return;
        figure.dataset.address = where;
        fail(next.missing ? `${next.file} is missing` : where ? "" : `${next.file} was left out of this page`);
        if (next.missing || !where) return;
        const wanted = () => figure.dataset.address === where;
        whenSeen(figure, () => { if (wanted()) part.show(where, wanted).catch((error) => { if (wanted()) fail(error.message); }); });
      },
    };
    result.show(entry, address);
    return result;
  }

  quintet.media = { card, captionOf };
})();
