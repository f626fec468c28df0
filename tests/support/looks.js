/** What of a page cannot be read, named or reached: each function lists it. An expression. */
(() => {
  const INTERACTIVE = "a[href], button, input, select, textarea, summary, [tabindex]";

  const isShown = (element) =>
    element.checkVisibility({ visibilityProperty: true, opacityProperty: true });

  const said = (element) => {
    const text = (element.getAttribute("aria-label") || element.textContent || "").trim();
    return `${element.tagName} ${element.getAttribute("class") ?? ""}: ${text.slice(0, 40)}`;
  };

  const channels = (colour) => (colour.match(/[\d.]+/g) ?? []).map(Number);

  const luminance = (colour) => {
    const [red, green, blue] = channels(colour).slice(0, 3).map((each) => each / 255)
      .map((each) => (each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };

  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const { backgroundColor } = getComputedStyle(each);
      if ((channels(backgroundColor)[3] ?? 1) === 1) return backgroundColor;
    }
    return "rgb(255, 255, 255)";
  };

  return {
    /** What makes the page wider than the window. */
    tooWide() {
      const { scrollWidth } = document.documentElement;
      if (scrollWidth <= innerWidth) return [];
      const wide = [...document.body.querySelectorAll("*")].filter((element) =>
        isShown(element) && element.getBoundingClientRect().right > innerWidth + 1);
      return [`${scrollWidth} of ${innerWidth}`, ...wide.slice(0, 5).map(said)];
    },

    /** What says only by colour or shape what it is. */
    withoutName() {
      const named = (element) => [
        element.getAttribute("aria-label"), element.getAttribute("title"), element.textContent,
        element.labels?.[0]?.textContent,
        document.getElementById(element.getAttribute("aria-labelledby"))?.textContent,
      ].some((name) => name?.trim());
      const wanted = `${INTERACTIVE}, canvas, [role=button], [role=application], [data-state]`;
      return [...document.body.querySelectorAll(wanted)].filter((element) => isShown(element)
        && element.id !== "main" && !element.closest("[aria-hidden=true]") && !named(element))
        .map(said);
    },

    /** Texts with less contrast than the WCAG ask for at level AA. */
    illegible() {
      const found = new Set();
      const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        const isEmpty = !texts.currentNode.textContent.trim();
        if (isEmpty || !isShown(element) || element.closest("svg, :disabled")) continue;
        const { color, fontSize, fontWeight } = getComputedStyle(element);
        const [dark, light] = [luminance(color), luminance(behind(element))]
          .sort((one, other) => one - other);
        const ratio = (light + 0.05) / (dark + 0.05);
        const size = parseFloat(fontSize);
        const isLarge = size >= 24 || (size >= 18.66 && fontWeight >= 700);
        if (ratio < (isLarge ? 3 : 4.5)) found.add(`${ratio.toFixed(2)} ${said(element)}`);
      }
      return [...found];
    },

    /** All that keys have to reach, numbered. */
    focusable() {
      return [...document.body.querySelectorAll(INTERACTIVE)]
        .filter((element) => isShown(element) && element.tabIndex >= 0 && !element.disabled)
        .map((element, at) => {
          element.numbered = at;
          return { number: at, what: said(element) };
        });
    },

    /** What keys are at, and whether that is seen. */
    focused() {
      const element = document.activeElement;
      const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(element);
      const hasOutline = outlineStyle !== "none" && parseFloat(outlineWidth) > 0;
      return {
        number: element.numbered ?? -1,
        what: said(element),
        isSeen: element === document.body || hasOutline || boxShadow !== "none",
      };
    },

    /** Bytes of the page itself, as they were sent. */
    bytesLoaded() {
      const entries = ["resource", "navigation"].flatMap((type) => performance.getEntriesByType(type));
      const sizes = new Map(entries.map(({ name, encodedBodySize }) => [name, encodedBodySize]));
      return [...sizes].filter(([name]) => !new URL(name).pathname.startsWith("/api/"))
        .reduce((sum, [, size]) => sum + size, 0);
    },
  };
})()
