// Before anything is drawn: the colours the reader chose.
(() => {
  "use strict";
  const kept = (() => { try { return localStorage.getItem("moldau-theme"); } catch { return null; } })();
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
