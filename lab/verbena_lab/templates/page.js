"use strict";
(() => {
  const plots = JSON.parse(document.getElementById("verbena-plots").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const coarse = window.matchMedia("(pointer: coarse)");
  const fewestPixelsPerTick = 58;

  function token(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function styledTrace(trace) {
    const styled = {...trace};
    if (trace.type === "bar") {
      const color = token(`--side-${trace.meta.side}`);
      styled.marker = {color};
      if (trace.error_x) styled.error_x = {...trace.error_x, color: token("--text"), thickness: 1, width: 3};
      if (["responder", "predicted"].includes(trace.meta.side)) {
        styled.marker.pattern = {shape: "/", size: 7, solidity: 0.25, bgcolor: color, fgcolor: token("--card")};
      }
      styled.textfont = {color: token("--text")};
      return styled;
    }
    const color = token(`--series-${trace.meta.slot}`);
    styled.line = {...trace.line, color};
    styled.marker = {...trace.marker, color};
    for (const error of ["error_x", "error_y"]) {
      if (trace[error]) styled[error] = {...trace[error], color, thickness: 1, width: 3};
    }
    return styled;
  }

  function axis(given, pixels) {
    const styled = {
      gridcolor: token("--grid"), linecolor: token("--rule"), zerolinecolor: token("--rule"), automargin: true,
      ...given,
      title: {standoff: 12, font: {size: 13}, ...given.title},
    };
    if (given.tickvals && pixels) {
      const every = Math.ceil(given.tickvals.length * fewestPixelsPerTick / pixels);
      styled.tickvals = given.tickvals.filter((_, index) => index % every === 0);
      styled.ticktext = given.ticktext.filter((_, index) => index % every === 0);
      styled.tickangle = 0;
    }
    return styled;
  }

  function layoutFor(variant, width, height) {
    const bars = variant.data[0].type === "bar";
    return {
      ...variant.layout,
      width,
      height,
      xaxis: axis(variant.layout.xaxis, Math.max(width - 90, 120)),
      yaxis: axis(variant.layout.yaxis),
      font: {family: getComputedStyle(document.body).fontFamily, size: 12.5, color: token("--text")},
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      // The mode bar stands to the right of the plot, where it hides nothing.
      margin: {l: 12, r: bars ? 60 : coarse.matches ? 16 : 36, t: 8, b: 12},
      modebar: {orientation: "v", bgcolor: "rgba(0,0,0,0)", color: token("--soft"), activecolor: token("--accent")},
      showlegend: bars,
      legend: {orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom"},
      hovermode: "closest",
      hoverlabel: {bgcolor: token("--card"), bordercolor: token("--rule"), align: "left",
        font: {color: token("--text"), size: 13}},
      // A finger on a plot scrolls the page; a mouse zooms.
      dragmode: coarse.matches ? false : "zoom",
    };
  }

  // Names of series (as in the traces) that the legend beside this plot has switched off.
  function hiddenNames(element) {
    const off = element.closest(".evidence").querySelectorAll(".legend button[aria-pressed=false]");
    return new Set([...off].map((button) => button.dataset.series));
  }

  function withoutHidden(trace, hidden) {
    if (trace.type !== "bar") return {...trace, visible: !hidden.has(trace.name)};
    const kept = (values) => values.filter((_, index) => !hidden.has(trace.y[index]));
    const left = {...trace, x: kept(trace.x), y: kept(trace.y), text: kept(trace.text), customdata: kept(trace.customdata)};
    if (trace.error_x) {
      left.error_x = {...trace.error_x, array: kept(trace.error_x.array), arrayminus: kept(trace.error_x.arrayminus)};
    }
    return left;
  }

  // The page has one legend for all plots; a saved picture stands alone and carries title and legend itself.
  function saveImage(plot, variant, element) {
    const text = `${plot.name}, ${variant.label}`;
    Plotly.downloadImage({
      data: element.data,
      layout: {...element.layout, showlegend: true, paper_bgcolor: token("--card"),
        title: {text, x: 0.02, xanchor: "left", font: {size: 16}}, margin: {...element.layout.margin, t: 56, r: 60}},
    }, {format: "png", width: 900, height: 560, scale: 2, filename: text.toLowerCase().replace(/[^a-z0-9]+/g, "-")});
  }

  function draw(plot) {
    const element = document.getElementById(plot.element);
    if (!element.clientWidth) return; // in a view that is not shown
    const choice = document.querySelector(`select[data-for="${plot.element}"]`);
    const variant = plot.variants[choice ? Number(choice.value) : 0];
    element.drawnWidth = element.clientWidth;
    const hidden = hiddenNames(element);
    const traces = variant.data.map((trace) => styledTrace(withoutHidden(trace, hidden)));
    Plotly.react(element, traces, layoutFor(variant, element.clientWidth, element.clientHeight), {
      displaylogo: false,
      displayModeBar: coarse.matches ? false : "hover",
      modeBarButtonsToRemove: ["toImage", "select2d", "lasso2d", "autoScale2d"],
      modeBarButtonsToAdd: [{
        name: "saveImage", title: "Save as PNG", icon: Plotly.Icons.camera,
        click: () => saveImage(plot, variant, element),
      }],
    });
  }

  function drawAll() {
    plots.forEach(draw);
  }

  function showView() {
    const choice = document.getElementById("view");
    if (choice) {
      for (const section of document.querySelectorAll(".view")) section.hidden = section.dataset.view !== choice.value;
    }
    drawAll();
  }

  // What a cell stands for: a number, a text, or null where it is not known.
  function valueOf(cell) {
    const key = cell.dataset.key;
    if (key === undefined) return null;
    return key.trim() === "" || isNaN(key) ? key : Number(key);
  }

  function compare(left, right) {
    const kind = (value) => ["number", "string"].indexOf(typeof value); // numbers before words
    if (typeof left !== typeof right) return kind(left) - kind(right);
    return typeof left === "number" ? left - right : left.localeCompare(right);
  }

  function sortBy(header) {
    const index = [...header.parentNode.children].indexOf(header);
    const ascending = header.getAttribute("aria-sort") !== "ascending";
    for (const other of header.parentNode.children) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const body = header.closest("table").tBodies[0];
    const keyed = [...body.rows].map((row) => ({row, key: valueOf(row.cells[index])}));
    keyed.sort((left, right) => {
      if (left.key === null || right.key === null) return (left.key === null) - (right.key === null); // unknown last
      return ascending ? compare(left.key, right.key) : compare(right.key, left.key);
    });
    body.append(...keyed.map((entry) => entry.row));
  }

  function download() {
    const text = JSON.parse(document.getElementById("verbena-csv").textContent);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], {type: "text/csv"}));
    link.download = "verbena-results.csv";
    link.click();
  }

  function filterRows() {
    const plain = (text) => text.toLowerCase().replaceAll("\u00a0", " ");
    const wanted = plain(document.getElementById("filter").value).trim();
    const rows = [...document.querySelectorAll(".sortable tbody tr")];
    let shown = 0;
    for (const row of rows) {
      row.searchText ??= plain([...row.cells].map((cell) => cell.textContent).join(" | "));
      // Words may stand in any column; "1 mib" stays together because a number belongs to its unit.
      const words = wanted.match(/\d[\d.,]* (?:[kmg]?i?b|[nµm]?s|[kmg]?b?\/s)\b|\S+/g) ?? [];
      row.hidden = !words.every((word) => row.searchText.includes(word));
      shown += !row.hidden;
    }
    document.getElementById("shown").textContent = wanted ? `${shown} of ${rows.length}` : "";
  }

  for (const choice of document.querySelectorAll("select[data-for]")) {
    choice.addEventListener("change", () => draw(plots.find((plot) => plot.element === choice.dataset.for)));
  }
  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true");
      drawAll();
    });
  }
  document.getElementById("view")?.addEventListener("change", showView);
  for (const header of document.querySelectorAll(".sortable thead th")) {
    header.firstElementChild.addEventListener("click", () => sortBy(header));
  }
  document.getElementById("filter")?.addEventListener("input", filterRows);
  document.getElementById("download")?.addEventListener("click", download);
  dark.addEventListener("change", drawAll);
  const sizes = new ResizeObserver((entries) => {
    for (const {target} of entries) {
      if (target.clientWidth !== target.drawnWidth) draw(plots.find((plot) => plot.element === target.id));
    }
  });
  for (const plot of plots) sizes.observe(document.getElementById(plot.element));
  showView();
})();
