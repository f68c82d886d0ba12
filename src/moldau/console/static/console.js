// The console's own script: times in the reader's zone, snapshots by server-sent events, plots, the tail, the keyboard.
// Nothing here makes markup out of data: fragments come escaped from the server, everything else is set as text.
(() => {
  "use strict";
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

  // ---- times
  const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 });
  const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
  const ago = new Intl.RelativeTimeFormat(undefined, { numeric: "auto", style: "narrow" });
  const relative = (ms) => {
    const s = (ms - Date.now()) / 1000, a = Math.abs(s);
    if (a < 60) return ago.format(Math.round(s), "second");
    if (a < 3600) return ago.format(Math.round(s / 60), "minute");
    if (a < 86400) return ago.format(Math.round(s / 3600), "hour");
    return ago.format(Math.round(s / 86400), "day");
  };
  const showTimes = (root = document) => {
    for (const each of $$("time[data-ms]", root)) {
      const ms = Number(each.dataset.ms), date = new Date(ms);
      if (Number.isNaN(date.getTime())) { each.textContent = String(ms); continue; }
      if (!each.title) { each.title = `${full.format(date)} (${date.toISOString()})`; each.dateTime = date.toISOString(); }
      const style = each.dataset.style;
      const text = style === "full" ? full.format(date)
        : style === "clock" ? (date.toDateString() === new Date().toDateString() ? "" : `${day.format(date)} `) + clock.format(date)
        : relative(ms);
      if (each.textContent !== text) each.textContent = text;
    }
  };

  // ---- colours
  const themes = ["auto", "light", "dark"];
  const nextTheme = () => {
    const now = document.documentElement.dataset.theme || "auto";
    const next = themes[(themes.indexOf(now) + 1) % themes.length];
    if (next === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = next;
    try { localStorage.setItem("moldau-theme", next); } catch { /* private windows keep nothing */ }
    drawPlots();
  };

  // ---- snapshots
  let source = null, lastWord = Date.now();
  const pulse = () => {
    const element = $("#pulse");
    if (!element) return;
    const at = Number(element.dataset.at), age = (Date.now() - at) / 1000;
    const lost = source && source.readyState === EventSource.CLOSED;
    let state = "good", word = at ? `as of ${relative(at)}` : "first look…";
    if (Number(element.dataset.problems) > 0) { state = "bad"; word = at ? `no answer, ${word}` : "no answer"; }
    else if (lost || Date.now() - lastWord > 60000) { state = "bad"; word = "console is away"; }
    else if (!at || age > 90) state = "warn";
    if (element.dataset.state !== state) element.dataset.state = state;
    const text = $(".word", element);
    if (text.textContent !== word) text.textContent = word;
  };
  const listen = () => {
    if (source || document.hidden || !$("#pulse")) return;
    source = new EventSource("/events");
    source.addEventListener("snapshot", (event) => {
      lastWord = Date.now();
      const said = JSON.parse(event.data), element = $("#pulse");
      if (said.at_ms) element.dataset.at = said.at_ms;
      if (said.problems !== undefined) element.dataset.problems = said.problems;
      pulse();
      if (said.at_ms) { document.body.dispatchEvent(new CustomEvent("snapshot")); loadPlots(); }
    });
    source.onerror = () => { if (source && source.readyState === EventSource.CLOSED) { source = null; setTimeout(listen, 5000); } };
  };
  // A browser opens few connections to one host: a tab nobody sees holds none.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { if (source) source.close(); source = null; } else { lastWord = Date.now(); listen(); }
  });

  // A page is not replaced under the hands of somebody who works in it.
  let kept = null;
  const isBusy = () => {
    const live = $("#live"), active = document.activeElement;
    if ($("dialog[open]")) return true;
    if (live && live.contains(active) && active.matches("input, select, textarea")) return true;
    const chosen = document.getSelection();
    return Boolean(chosen && !chosen.isCollapsed && live && live.contains(chosen.anchorNode));
  };
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.detail.elt.matches("[data-refresh]") && isBusy()) event.preventDefault();
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    const active = document.activeElement;
    kept = event.detail.target.contains(active) && active.hasAttribute("href") ? active.getAttribute("href") : null;
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    showTimes(event.detail.target);
    for (const form of $$("form")) showStart(form);
    if (kept) { const again = $$("a[href]", event.detail.target).find((each) => each.getAttribute("href") === kept); if (again) again.focus({ preventScroll: true }); }
    if (event.detail.target.id === "detail") openDetail(true);
    if (event.detail.target.id === "palette-found") choose(0);
  });
  document.addEventListener("htmx:sendError", () => { lastWord = 0; pulse(); });

  // ---- plots
  const plots = new Map();
  const minutes = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
  const seconds = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const palette = () => [colour("--accent"), colour("--number"), colour("--word"), colour("--string"), colour("--bad"), colour("--warn"), colour("--dim"), colour("--text")];
  const shortNumber = (value) => {
    if (value === null || value === undefined) return "–";
    const a = Math.abs(value);
    if (a >= 1e9) return `${+(value / 1e9).toFixed(1)}G`;
    if (a >= 1e6) return `${+(value / 1e6).toFixed(1)}M`;
    if (a >= 1e4) return `${+(value / 1e3).toFixed(1)}k`;
    return String(+value.toFixed(a < 10 ? 1 : 0));
  };
  const draw = (element) => {
    const told = plots.get(element);
    if (!told || !told.data) return;
    if (told.chart) { told.chart.destroy(); told.chart = null; }
    element.replaceChildren();
    const { times, series } = told.data;
    if (times.length < 2 || !series.length) {
      const quiet = document.createElement("p");
      quiet.className = "quiet";
      quiet.textContent = times.length < 2 ? "The first points come in a few seconds." : "Nothing to plot yet.";
      element.append(quiet);
      return;
    }
    const colours = palette(), axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    told.chart = new uPlot({
      width: element.clientWidth - 12, height: 152, cursor: { points: { size: 7 } }, legend: { live: true },
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.12 : 1] } },
      axes: [{ ...axis, size: 30, space: 84, values: (_, ticks) => ticks.map((tick) => (ticks[1] - ticks[0] < 60 ? seconds : minutes).format(tick * 1000)) }, { ...axis, size: 52, values: (_, ticks) => ticks.map(shortNumber) }],
      series: [{ label: "at", value: (_, value) => seconds.format((value ?? told.data.times.at(-1)) * 1000) }, ...series.map((each, place) => ({
        label: each.label, stroke: colours[place % colours.length], width: 2, points: { show: false }, spanGaps: false,
        fill: series.length === 1 ? `${colours[0]}22` : undefined,
        value: (_, value) => `${shortNumber(value ?? told.data.series[place]?.values.at(-1))} ${element.dataset.unit}`,
      }))],
    }, [times, ...series.map((each) => each.values)], element);
  };
  const drawPlots = () => { for (const element of plots.keys()) draw(element); };
  const loadPlot = async (element) => {
    try {
      const answer = await fetch(element.dataset.plot, { headers: { accept: "application/json" } });
      if (!answer.ok) return;
      const data = await answer.json(), told = plots.get(element);
      const before = told.data;
      told.data = data;
      const same = told.chart && before && before.series.length === data.series.length && before.series.every((each, place) => each.label === data.series[place].label);
      if (same) told.chart.setData([data.times, ...data.series.map((each) => each.values)]); else draw(element);
    } catch { /* the pulse says that the console is away */ }
  };
  const loadPlots = () => {
    for (const element of $$("[data-plot]")) if (!plots.has(element)) plots.set(element, { data: null, chart: null });
    for (const element of plots.keys()) if (element.isConnected) loadPlot(element); else plots.delete(element);
  };
  let resizing = 0;
  addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(drawPlots, 120); });

  // ---- dialogs, menus, confirmations
  const open = (id) => { const dialog = document.getElementById(id); if (dialog && !dialog.open) dialog.showModal(); };
  document.addEventListener("click", (event) => {
    const at = (selector) => event.target.closest(selector);
    const opener = at("[data-open]");
    if (opener) {
      const dialog = document.getElementById(opener.dataset.open);
      for (const [name, value] of Object.entries(opener.dataset)) if (name.startsWith("fill")) {
        const field = dialog && dialog.querySelector(`[name="${name.slice(4).toLowerCase()}"], [data-fill="${name.slice(4).toLowerCase()}"]`);
        if (field) { if ("value" in field) field.value = value; else field.textContent = value; }
      }
      if (dialog && opener.dataset.fillshown !== undefined) for (const field of $$("[data-must-be]", dialog)) { field.value = ""; field.dataset.mustBe = opener.dataset.fillshown; $(".danger", dialog).disabled = true; }
      open(opener.dataset.open);
    }
    if (at("[data-close]")) at("dialog").close();
    if (at("[data-palette]")) openPalette();
    if (at("[data-theme-next]")) nextTheme();
    if (at("[data-menu]")) { const side = $(".side"); side.classList.toggle("open"); at("[data-menu]").setAttribute("aria-expanded", String(side.classList.contains("open"))); }
    if (at("[data-close-detail]")) openDetail(false);
    if (at("[data-copy]")) navigator.clipboard?.writeText(new URL(at("[data-copy]").dataset.copy, location.href).href);
    if (at("[data-tail]")) toggleTail(at("[data-tail]"));
    if (event.target instanceof HTMLDialogElement) event.target.close();
    const row = at(".messages tbody tr");
    if (row && !at("a, button")) { const link = $("a[hx-get]", row); if (link) link.click(); }
  });
  document.addEventListener("input", (event) => {
    const wanted = event.target.dataset?.mustBe;
    if (wanted !== undefined) { const button = $(".danger", event.target.form); if (button) button.disabled = event.target.value.trim() !== wanted; }
  });
  // A local time becomes one with a zone before it leaves, and what an address says becomes a local time.
  const told = (field) => $("input[type=hidden]", field.parentElement.parentElement);
  const localText = (date) => new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
  const fixTime = (form) => { for (const field of $$("input[data-local-time]", form)) if (field.value) told(field).value = new Date(field.value).toISOString(); };
  const fillTime = (field) => {
    const said = told(field).value, date = new Date(/^-?\d+$/.test(said) ? Number(said) : said || Math.floor(Date.now() / 60_000) * 60_000 - 3_600_000);
    if (!field.value && !Number.isNaN(date.getTime())) field.value = localText(date);
  };
  document.addEventListener("submit", (event) => fixTime(event.target), true);
  // What else a choice needs to be told is asked for when it is made.
  const showStart = (form) => {
    const by = $("select[data-asks]", form);
    if (!by) return;
    for (const part of $$("[data-when]", form)) { part.hidden = !part.dataset.when.split(" ").includes(by.value); for (const field of $$("input", part)) field.disabled = part.hidden; }
    for (const field of $$("input[data-local-time]:enabled", form)) fillTime(field);
  };
  document.addEventListener("change", (event) => { if (event.target.form) showStart(event.target.form); });
  // Rows somebody chooses, for the one form that takes them all.
  document.addEventListener("change", (event) => {
    const { chooseAll, choose } = event.target.dataset ?? {};
    if (chooseAll === undefined && choose === undefined) return;
    const boxes = $$("[data-choose]"), chosen = () => boxes.filter((each) => each.checked);
    if (chooseAll !== undefined) for (const each of boxes) each.checked = event.target.checked;
    const all = $("[data-choose-all]"), count = chosen().length;
    all.checked = count > 0 && count === boxes.length;
    all.indeterminate = count > 0 && count < boxes.length;
    $("[data-chosen]").value = chosen().map((each) => each.dataset.choose).join(",");
    $("[data-chosen-do]").disabled = count === 0;
    $("[data-chosen-count]").textContent = count ? ` (${count})` : "";
  });

  // ---- messages
  const openDetail = (is) => {
    const browse = $(".browse"), detail = $("#detail");
    if (!browse) return;
    browse.classList.toggle("open", is);
    if (!is) { detail.replaceChildren(); const row = $("tr.chosen a", browse); if (row) row.focus(); }
  };
  document.addEventListener("htmx:beforeRequest", (event) => {
    const row = event.detail.elt.closest(".messages tbody tr");
    if (row) { for (const each of $$(".messages tr.chosen")) each.classList.remove("chosen"); row.classList.add("chosen"); }
  });
  let tail = null;
  const stopTail = () => {
    if (tail) tail.close();
    tail = null;
    const button = $("[data-tail]");
    if (button) { button.setAttribute("aria-pressed", "false"); $("#tailing").hidden = true; }
  };
  // An address can be live, too.
  const noteTail = (is) => { const at = new URL(location.href); at.hash = is ? "live" : ""; history.replaceState(history.state, "", at.hash ? at : at.pathname + at.search); };
  const toggleTail = (button) => {
    noteTail(!tail);
    if (tail) { stopTail(); return; }
    const form = $("#reading"), asked = new URLSearchParams(new FormData(form));
    asked.delete("start"); asked.delete("at");
    button.setAttribute("aria-pressed", "true");
    const state = $("#tailing"), word = $(".word", state);
    state.hidden = false;
    word.textContent = "waiting for records";
    let seen = 0, skipped = 0, failed = 0;
    tail = new EventSource(`${button.dataset.tail}?${asked}`);
    tail.addEventListener("rows", (event) => {
      failed = 0;
      const said = JSON.parse(event.data), body = $("#tail-rows");
      body.insertAdjacentHTML("afterbegin", said.html);
      for (const row of $$("tr:not([data-known])", body)) { row.dataset.known = ""; row.classList.add("new"); seen += 1; htmx.process(row); }
      while (body.children.length > 500) body.lastElementChild.remove();
      showTimes(body);
      skipped += said.skipped;
      $("#tail-card").hidden = false;
      word.textContent = said.trouble || `${seen.toLocaleString()} shown${skipped ? `, ${skipped.toLocaleString()} skipped to keep pace` : ""}`;
    });
    tail.onerror = () => { failed += 1; word.textContent = "no answer; trying again"; if (failed > 5) stopTail(); };
  };
  addEventListener("pagehide", () => { if (tail) tail.close(); if (source) source.close(); });

  // ---- the jump box and the keyboard
  let place = 0;
  const found = () => { const words = $("#palette-q").value.toLowerCase().trim(); for (const each of $$("#palette-found [data-screen]")) each.hidden = Boolean(words) && !each.textContent.toLowerCase().includes(words); return $$("#palette-found li:not([hidden]) a"); };
  const choose = (to) => {
    const links = found();
    place = Math.max(0, Math.min(links.length - 1, to));
    links.forEach((each, number) => { each.classList.toggle("chosen", number === place); if (number === place) each.scrollIntoView({ block: "nearest" }); });
  };
  const openPalette = () => { open("palette"); const field = $("#palette-q"); field.value = ""; field.focus(); htmx.trigger(field, "palette"); };
  const rows = () => $$("main tbody tr").filter((row) => !row.hidden && $("a[href]", row));
  const step = (by) => {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((row) => row.classList.contains("chosen"));
    const next = all[Math.max(0, Math.min(all.length - 1, at + by))];
    all.forEach((row) => row.classList.toggle("chosen", row === next));
    const link = $("a[href]", next);
    link.focus();
    if ($(".browse.open") && link.hasAttribute("hx-get")) link.click();
  };
  let prefix = "";
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") { event.preventDefault(); openPalette(); return; }
    if ($("#palette")?.open) {
      if (event.key === "ArrowDown") { event.preventDefault(); choose(place + 1); }
      if (event.key === "ArrowUp") { event.preventDefault(); choose(place - 1); }
      if (event.key === "Enter") { event.preventDefault(); found()[place]?.click(); }
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select") || $("dialog[open]")) return;
    if (prefix === "g") {
      prefix = "";
      const link = $(`[data-keys="g ${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); return; }
    }
    if (event.key === "g") { prefix = "g"; setTimeout(() => { prefix = ""; }, 1200); }
    else if (event.key === "/") { const field = $("main input[type=search], main input[name=filter]"); if (field) { event.preventDefault(); field.focus(); field.select(); } }
    else if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
    else if (event.key === "c") nextTheme();
    else if (event.key === "?") open("keys");
    else if (event.key === "Escape" && $(".browse.open")) openDetail(false);
  });

  document.addEventListener("DOMContentLoaded", () => {
    showTimes();
    setInterval(() => { showTimes(); pulse(); }, 2000);
    for (const form of $$("form")) showStart(form);
    pulse();
    listen();
    loadPlots();
    if (location.hash === "#live" && $("[data-tail]")) toggleTail($("[data-tail]"));
    // A dialog has an address as well: one can be sent the form for a new topic.
    else if (location.hash.length > 1 && $(`button[data-open="${CSS.escape(location.hash.slice(1))}"]`) && !$(`button[data-open="${CSS.escape(location.hash.slice(1))}"][data-fillshown]`)) open(location.hash.slice(1));
  });
})();
