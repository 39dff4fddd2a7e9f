// What a browser itself can decide about how a page looks. Each function returns sentences, one for each thing wrong.
window.look = (() => {
  const CLOSE = 1.5;  // pixels by which boxes may meet before it counts

  const named = (element) => {
    const kind = element.getAttribute("class");
    return element.tagName.toLowerCase() + (kind ? "." + kind.trim().split(/\s+/).join(".") : "");
  };
  const shown = (text) => JSON.stringify(text.trim().replace(/\s+/g, " ").slice(0, 40));

  // ------------------------------------------------------------------------------------------------------ overflow

  function overflow() {
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= width) return [];
    const wide = [...document.body.querySelectorAll("*")].filter(
      (each) => each.getBoundingClientRect().right > width + 1 && !scrolls(each.parentElement)
    );
    const innermost = wide.filter((each) => !wide.some((other) => other !== each && each.contains(other)));
    return innermost.slice(0, 3).map((each) => `wider than the window: ${named(each)} ${shown(each.textContent)}`);
  }

  // A drawing or a picture is seen whole, or can be scrolled, and then a sign says so.
  function cutOff() {
    const found = [];
    for (const each of document.querySelectorAll("svg.drawing, svg.chart, [role=main] img")) {
      const box = each.getBoundingClientRect();
      for (let above = each.parentElement; above; above = above.parentElement) {
        const style = getComputedStyle(above);
        if (style.overflowX === "visible" && above !== document.documentElement) continue;
        const room = above === document.documentElement ? { left: 0, right: above.clientWidth } : above.getBoundingClientRect();
        if (box.right <= room.right + 1 && box.left >= room.left - 1) continue;
        const name = shown(each.getAttribute("aria-label") ?? each.getAttribute("alt") ?? named(each));
        if (style.overflowX !== "auto" && style.overflowX !== "scroll") found.push(`cut off: ${name}`);
        else if (![...above.querySelectorAll(".sideways")].some((sign) => sign.checkVisibility())) found.push(`scrolls without a sign: ${name}`);
        break;
      }
    }
    return found;
  }

  function scrolls(element) {
    for (; element && element !== document.body; element = element.parentElement)
      if (getComputedStyle(element).overflowX !== "visible") return true;
    return false;
  }

  // ------------------------------------------------------------------------------------------------------ pictures

  const broken = () =>
    [...document.querySelectorAll("img")]
      .filter((each) => each.complete && each.naturalWidth === 0)
      .map((each) => `a picture that is not there: ${each.getAttribute("src")}`);

  // ------------------------------------------------------------------------------------------------------ sidebar

  // The entry of the open page is among those that the sidebar shows, where it is shown itself.
  function sidebar() {
    const place = document.querySelector(".sidebar-scroll");
    const here = [...document.querySelectorAll(".sidebar-scroll .current-page > a")].pop();
    if (!here?.checkVisibility()) return [];
    const [room, box] = [place.getBoundingClientRect(), here.getBoundingClientRect()];
    return box.top < room.top - 1 || box.bottom > room.bottom + 1 ? [`the sidebar hides where one is: ${shown(here.textContent)}`] : [];
  }

  // ------------------------------------------------------------------------------------------------------ contrast

  // Any CSS colour as [red, green, blue, alpha], 0 to 1, by painting it.
  const canvas = document.createElementNS("http://www.w3.org/1999/xhtml", "canvas").getContext("2d", { willReadFrequently: true });
  canvas.canvas.width = canvas.canvas.height = 1;
  const colours = new Map();
  function colour(css) {
    if (!colours.has(css)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = css;
      canvas.fillRect(0, 0, 1, 1);
      colours.set(css, [...canvas.getImageData(0, 0, 1, 1).data].map((part) => part / 255));
    }
    return colours.get(css);
  }
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const luminance = (rgb) =>
    [0.2126, 0.7152, 0.0722].reduce((sum, share, i) => {
      const part = rgb[i];
      return sum + share * (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    }, 0);
  function ratio(one, other) {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  }

  function behind(element) {
    const layers = [];
    for (; element; element = element.parentElement) {
      const found = colour(getComputedStyle(element).backgroundColor);
      layers.push(found);
      if (found[3] === 1) break;
    }
    return layers.reverse().reduce((below, top) => over(top, below), [1, 1, 1, 1]);
  }

  // The filled shape on which the middle of a text in a drawing lies, or what is behind the drawing.
  function behindText(text) {
    const svg = text.ownerSVGElement;
    const box = text.getBoundingClientRect();
    const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
    let found = behind(svg);
    for (const rect of svg.querySelectorAll("rect")) {
      const area = rect.getBoundingClientRect();
      const fill = getComputedStyle(rect).fill;
      if (fill !== "none" && area.left < x && x < area.right && area.top < y && y < area.bottom)
        found = over(colour(fill), found);
    }
    return found;
  }

  // WCAG 2.2, 1.4.3: 4.5, or 3 for large text. Of the text in `place`: what stands around it is the same on each page.
  function contrast(place) {
    const found = new Map();
    const walker = document.createTreeWalker(document.querySelector(place) ?? document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const element = walker.currentNode.parentElement;
      if (!walker.currentNode.data.trim() || !element || !isSeen(element)) continue;
      const style = getComputedStyle(element);
      const inDrawing = element.ownerSVGElement !== null && element.ownerSVGElement !== undefined;
      const below = inDrawing ? behindText(element) : behind(element);
      const ink = over(colour(inDrawing ? style.fill : style.color), below);
      const size = parseFloat(style.fontSize);
      const needed = size >= 24 || (size >= 18.66 && parseInt(style.fontWeight) >= 700) ? 3 : 4.5;
      const seen = ratio(ink, below);
      if (seen < needed) found.set(named(element), `contrast ${seen.toFixed(2)}: ${named(element)} ${shown(walker.currentNode.data)}`);
    }
    return [...found.values()];
  }

  function isSeen(element) {
    if (element.closest("script, style, title, noscript, .visually-hidden, [aria-hidden=true]")) return false;
    if (!element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) return false;
    const box = element.getBoundingClientRect();
    return box.width > 1 && box.height > 1 && box.right > 0 && box.left < innerWidth;
  }

  // ------------------------------------------------------------------------------------------------------ drawings

  function drawings() {
    return [...document.querySelectorAll("svg")].filter((svg) => !svg.parentElement?.closest("svg")).flatMap(inDrawing);
  }

  function inDrawing(svg) {
    const texts = [...svg.querySelectorAll("text")].filter((text) => text.textContent.trim() && isSeen(text));
    const boxes = texts.map((text) => text.getBoundingClientRect());
    const paper = svg.getBoundingClientRect();
    const found = [];
    texts.forEach((text, i) => {
      const box = boxes[i];
      if (box.left < paper.left - CLOSE || box.right > paper.right + CLOSE || box.top < paper.top - CLOSE || box.bottom > paper.bottom + CLOSE)
        found.push(`a text leaves its drawing: ${shown(text.textContent)}`);
      for (let j = i + 1; j < texts.length; j++)
        if (meet(box, boxes[j])) found.push(`texts overlap: ${shown(text.textContent)} and ${shown(texts[j].textContent)}`);
      for (const rect of svg.querySelectorAll("rect:not(.frame)")) {
        const area = rect.getBoundingClientRect();
        const middle = [box.x + box.width / 2, box.y + box.height / 2];
        const within = area.left < middle[0] && middle[0] < area.right && area.top < middle[1] && middle[1] < area.bottom;
        if (within && (box.left < area.left || box.right > area.right))
          found.push(`a text is wider than its box: ${shown(text.textContent)}`);
      }
    });
    return found;
  }

  // Lines of one label may touch: the box of a text is higher than its letters.
  function meet(one, other) {
    const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
    const down = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
    return across > CLOSE && down > Math.min(one.height, other.height) / 3;
  }

  return { overflow, cutOff, broken, sidebar, contrast, drawings };
})();
