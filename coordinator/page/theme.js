/** Light or dark, before anything is painted: as chosen here, else as the system has it. */
(() => {
  const KEY = "drumbeat-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");

  function chosen() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // storage may be forbidden
    }
  }

  function apply() {
    const theme = chosen() ?? (system.matches ? "dark" : "light");
    if (document.documentElement.dataset.theme === theme) return;
    document.documentElement.dataset.theme = theme;
    window.dispatchEvent(new Event("themechange"));
  }

  window.switchTheme = () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try {
      // What the system has anyway is not kept, so that it is followed again.
      if ((next === "dark") === system.matches) localStorage.removeItem(KEY);
      else localStorage.setItem(KEY, next);
    } catch {
      document.documentElement.dataset.theme = next;
      window.dispatchEvent(new Event("themechange"));
    }
    apply();
  };
  system.addEventListener("change", apply);
  window.addEventListener("storage", apply);
  apply();
})();
