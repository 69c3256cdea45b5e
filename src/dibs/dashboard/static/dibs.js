// The page of dibs, livelier: everything here also works without it.
"use strict";
(() => {
  const body = document.body;
  const root = body.dataset.root || "";
  const $ = (selector, where = document) => where.querySelector(selector);
  const main = $("#main");
  const away = $("#away");
  const liveButton = $("#live");
  const KEY = "dibs-live";

  // -- times: relative, in the viewer's words; the exact one, in the viewer's zone, on hover ----------------

  const spoken = (seconds) => {
    seconds = Math.max(seconds, 0);
    for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
      if (seconds >= 2 * size) return `${Math.round(seconds / size)} ${unit}`;
    }
    return seconds >= 9.95 ? `${Math.round(seconds)} s` : seconds >= 1 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds * 1000)} ms`;
  };
  const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

  function times() {
    const now = Date.now();
    for (const time of document.querySelectorAll("time")) {
      const at = new Date(time.dateTime);
      const seconds = (now - at) / 1000;
      const size = Math.abs(seconds);
      const whole = size < 9.95 ? `${Math.round(size)} s` : spoken(size);
      const says = "still" in time.dataset ? spoken(seconds)
        : Math.abs(seconds) < 1 ? "now" : seconds > 0 ? `${whole} ago` : `in ${whole}`;
      if (time.textContent !== says) time.textContent = says;
      const title = exact.format(at);
      if (time.title !== title) time.title = title;
    }
  }

  // -- what only makes sense with a script --------------------------------------------------------------

  function equip() {
    for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;
    times();
  }

  async function copy(button) {
    const text = document.getElementById(button.dataset.copy).textContent;
    const label = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch { // browsers offer the clipboard on secure pages only
      const area = document.createElement("textarea");
      area.value = text;
      area.className = "hidden";
      body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "copied";
    setTimeout(() => { button.textContent = label; }, 1200);
  }

  // -- show what the server sends, in place ---------------------------------------------------------------

  const morphing = {
    morphStyle: "outerHTML",
    ignoreActiveValue: true,
    callbacks: {
      beforeAttributeUpdated: (name, node) => !(name === "open" && node.tagName === "DETAILS") &&
        !(name === "hidden" && node.dataset && "copy" in node.dataset) && !(name === "class" && node.classList.contains("here")),
      beforeNodeMorphed: (old, fresh) => !(old.nodeType === 1 && /^(INPUT|TEXTAREA)$/.test(old.tagName) && old.type !== "hidden" && old.value !== old.defaultValue),
    },
  };

  const SAID_LASTS = 15000; // a change a moment later must not take away what an act has done
  let saidUntil = Date.now() + SAID_LASTS;

  function show(text) {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    if (!$("#main", fresh)) return false;
    const said = $(".said", main);
    if ($(".said", fresh)) saidUntil = Date.now() + SAID_LASTS;
    else if (said && Date.now() < saidUntil) $("#main", fresh).prepend(said.cloneNode(true));
    Idiomorph.morph(main, $("#main", fresh), morphing);
    body.dataset.page = fresh.body.dataset.page;
    setIcon($("link[rel=icon]", fresh).getAttribute("href"));
    document.title = fresh.title;
    equip();
    return true;
  }

  function setIcon(href) {
    const icon = $("link[rel=icon]");
    if (icon.getAttribute("href") !== href) icon.setAttribute("href", href);
  }

  let loading = false, again = false;
  async function refresh() {
    if (loading) { again = true; return; }
    loading = true;
    try {
      const response = await fetch(location.href, { headers: { "X-Dibs-Live": "1" }, cache: "no-store" });
      if (response.redirected && new URL(response.url).pathname !== location.pathname) { location.reload(); return; }
      if (response.status === 503) return setAway(true);
      if (show(await response.text())) setAway(false);
    } catch {
      setAway(true, "The server does not respond");
    } finally {
      loading = false;
      if (again) { again = false; refresh(); }
    }
  }

  // -- buttons: send the form, show the page that follows ---------------------------------------------------

  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (form.method !== "post" || !form.getAttribute("action").endsWith("act") || !window.Idiomorph) return;
    event.preventDefault();
    const data = new URLSearchParams(new FormData(form, event.submitter));
    if (event.submitter) event.submitter.disabled = true;
    try {
      const response = await fetch(form.action, { method: "POST", body: data });
      const text = await response.text();
      const here = new URL(response.url);
      if (!response.ok) complain(text);
      else if (here.pathname + here.search !== location.pathname + location.search) location.assign(here);
      else { form.reset(); show(text); }
    } catch {
      setAway(true, "The server does not respond: nothing may have been changed");
    } finally {
      if (event.submitter) event.submitter.disabled = false;
    }
  });

  function complain(text) {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const said = $("[data-said]", fresh);
    let place = $(".said", main);
    if (!place) {
      place = document.createElement("p");
      place.className = "said";
      place.dataset.said = "";
      place.setAttribute("role", "alert");
      main.prepend(place);
    }
    saidUntil = Date.now() + SAID_LASTS;
    place.textContent = said ? said.textContent : "That did not work; load the page again";
  }

  // -- live, with a brake -----------------------------------------------------------------------------------

  let source = null, waiting = false, wanted = true;
  try { wanted = localStorage.getItem(KEY) !== "off"; } catch { /* storage may be forbidden */ }

  const isTyping = () => {
    const active = document.activeElement;
    return active && /^(INPUT|TEXTAREA|SELECT)$/.test(active.tagName) && main.contains(active);
  };
  const isSelecting = () => {
    const selection = getSelection();
    return selection && !selection.isCollapsed && main.contains(selection.anchorNode);
  };
  let aimedAt = 0; // rows must not move away below a pointer that is on its way to a button
  document.addEventListener("pointermove", (event) => {
    if (event.target.closest?.("main tbody")) aimedAt = Date.now();
  }, { passive: true });
  const isAiming = () => Date.now() - aimedAt < 1500;
  const isBraked = () => !wanted || isTyping() || isSelecting() || isAiming();

  function changed() {
    if (isBraked()) { waiting = true; drawLive(); return; }
    waiting = false;
    drawLive();
    refresh();
  }

  function drawLive() {
    if (!liveButton) return;
    liveButton.hidden = false;
    liveButton.setAttribute("aria-pressed", String(wanted));
    liveButton.textContent = (wanted ? "live" : "paused") + (waiting ? ": new data" : "");
  }

  function setAway(is, says) {
    if (!away) return;
    const since = away.dataset.since || new Date().toLocaleTimeString();
    away.hidden = !is;
    if (is) {
      away.dataset.since = since;
      const text = `${says || "The store can’t be reached"} since ${since}. What you see is from before; trying again.`;
      if (away.textContent !== text) away.textContent = text;
      setIcon(`${root}static/icon-away.svg`);
    } else {
      delete away.dataset.since;
    }
  }

  function connect() {
    if (source || !body.dataset.live || !wanted || document.hidden) return;
    source = new EventSource(body.dataset.live);
    source.addEventListener("changed", changed);
    source.addEventListener("away", (event) => {
      if (event.data === "1") setAway(true); else { setAway(false); refresh(); }
    });
    let broken = 0;
    source.onopen = () => { if (broken) { clearTimeout(broken); broken = 0; if (!away.hidden) refresh(); } };
    source.onerror = () => {
      if (!source) return;
      if (source.readyState === EventSource.CLOSED) { // logged out, or refused
        disconnect();
        setTimeout(() => { refresh(); connect(); }, 5000);
      } else if (!broken) { // streams end every now and then; the browser connects again by itself
        broken = setTimeout(() => setAway(true, "The server does not respond"), 3000);
      }
    };
  }

  function disconnect() {
    if (source) source.close();
    source = null;
  }

  function setLive(on) {
    wanted = on;
    try { localStorage.setItem(KEY, on ? "on" : "off"); } catch { /* as above */ }
    if (on) { connect(); refresh(); } else disconnect();
    drawLive();
  }

  if (liveButton) liveButton.addEventListener("click", () => setLive(!wanted));
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) disconnect(); else if (wanted && body.dataset.live) { connect(); refresh(); }
  });
  addEventListener("pagehide", disconnect);
  for (const name of ["focusout", "selectionchange"]) {
    document.addEventListener(name, () => setTimeout(() => { if (waiting && wanted) changed(); }, 150));
  }

  // -- keys -------------------------------------------------------------------------------------------------

  const GO = { o: "", j: "jobs", q: "queues", t: "trains", s: "slots", p: "pipelines", c: "schedules", w: "workers", x: "outbox", h: "health" };
  let going = false;

  function step(by) {
    const rows = [...main.querySelectorAll("tbody tr")];
    if (!rows.length) return;
    const now = rows.findIndex((row) => row.classList.contains("here"));
    const next = rows[Math.min(Math.max(now + by, 0), rows.length - 1)];
    if (now >= 0) rows[now].classList.remove("here");
    next.classList.add("here");
    next.scrollIntoView({ block: "nearest" });
    const link = $("a", next);
    if (link) link.focus({ preventScroll: true });
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const active = document.activeElement;
    if (active && /^(INPUT|TEXTAREA|SELECT)$/.test(active.tagName)) {
      if (event.key === "Escape") active.blur();
      return;
    }
    if (going) {
      going = false;
      if (event.key in GO) { event.preventDefault(); location.assign(`${root}${GO[event.key]}` || "./"); }
      return;
    }
    const does = {
      "/": () => $(".search input")?.focus(),
      j: () => step(1),
      k: () => step(-1),
      g: () => { going = true; setTimeout(() => { going = false; }, 1500); },
      p: () => liveButton && setLive(!wanted),
      "?": () => $("#help")?.showModal(),
    }[event.key];
    if (does) { event.preventDefault(); does(); }
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(button);
  });

  equip();
  drawLive();
  connect();
  setInterval(() => { times(); if (waiting && !isBraked()) changed(); }, 1000);
  if ($("[data-retry]")) setInterval(async () => {
    try { if ((await fetch(location.href, { cache: "no-store" })).ok) location.reload(); } catch { /* still away */ }
  }, 3000);
})();
