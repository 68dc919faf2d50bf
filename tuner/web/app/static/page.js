// What plain HTML and htmx leave over: quiet polling, announcements, copying. No state is kept here.
"use strict";

(() => {
  const etags = new Map();

  const within = (root, selector) => (root.matches(selector) ? root : root.querySelector(selector));

  const announce = (root) => {
    const source = within(root, "[data-announce]");
    const target = document.getElementById("announcer");
    if (source && target && target.textContent !== source.dataset.announce) {
      target.textContent = source.dataset.announce;
    }
  };

  const isPolling = (event) => event.detail.elt.hasAttribute("data-live")
    && !(event.detail.triggeringEvent || event.detail.requestConfig?.triggeringEvent);

  document.addEventListener("htmx:configRequest", (event) => {
    // empty fields of a form stay out of the address
    const parameters = event.detail.parameters;
    for (const name of Object.keys(parameters)) {
      if (parameters[name] === "") delete parameters[name];
    }
    if (isPolling(event)) {
      const known = etags.get(event.detail.path);
      if (known) event.detail.headers["If-None-Match"] = known;
    }
  });

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (!isPolling(event)) return;
    const element = event.detail.elt;
    const isBusy = element.querySelector("input:checked, select:focus, input:focus");
    // a list in which somebody ticks trials stays as it is; a hidden page need not be fresh
    if (document.hidden || isBusy) event.preventDefault();
  });

  document.addEventListener("htmx:afterRequest", (event) => {
    const etag = event.detail.xhr?.getResponseHeader("ETag");
    if (etag && isPolling(event)) etags.set(event.detail.requestConfig.path, etag);
  });

  document.addEventListener("htmx:afterSwap", (event) => {
    announce(event.target);
    const state = within(event.target, "[data-change]");
    if (state) {
      document.dispatchEvent(new CustomEvent("tuner:change", { detail: state.dataset.change }));
    }
  });

  // the words beside a filter follow its boxes; the boxes themselves stay as the user set them
  document.addEventListener("change", (event) => {
    const choice = event.target.closest(".choice");
    if (choice) {
      const chosen = [...choice.querySelectorAll("input:checked")].map((box) => box.value);
      choice.toggleAttribute("data-set", chosen.length > 0);
      choice.querySelector(".chosen").textContent = chosen.length ? `: ${chosen.join(", ")}` : "";
    }
    if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
  });

  // one open filter at a time; Escape and a click elsewhere close it
  const closeChoices = (except) => {
    for (const open of document.querySelectorAll(".choice[open]")) {
      if (open !== except) open.open = false;
    }
  };
  document.addEventListener("click", (event) => closeChoices(event.target.closest(".choice")));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      const open = document.querySelector(".choice[open]");
      closeChoices(null);
      if (open && open.contains(document.activeElement)) open.querySelector("summary").focus();
    }
    const isRun = event.key === "Enter" && (event.ctrlKey || event.metaKey);
    if (isRun && event.target.id === "sql-text") event.target.form.requestSubmit();
  });

  const copy = async (text, element) => {
    if (navigator.clipboard && window.isSecureContext) {
      await navigator.clipboard.writeText(text);
      return true;
    }
    const range = document.createRange();
    range.selectNodeContents(element);
    const selection = window.getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
    return document.execCommand("copy");
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const element = document.getElementById(button.dataset.copy);
    const isDone = await copy(element.textContent, element).catch(() => false);
    button.textContent = isDone ? "Copied" : "Press Ctrl + C";
    document.getElementById("announcer").textContent = isDone ? "Copied" : "Selected";
    window.setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
})();
