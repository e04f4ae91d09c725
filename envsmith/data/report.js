"use strict";
(function () {
  var all = function (root, selector) { return Array.from(root.querySelectorAll(selector)); };
  var counted = function (count, one) { return count.toLocaleString("en") + " " + one + (count === 1 ? "" : "s"); };

  // details that a search opened are closed again when it ends; what the reader opened stays open
  var open = function (details) {
    if (!details.open) { details.open = true; details.dataset.found = "1"; }
  };
  var restore = function (root) {
    all(root, "details[data-found]").forEach(function (details) {
      details.open = false;
      delete details.dataset.found;
    });
  };

  // one search for one list: after the last key, so that typing into 5,000 rows stays smooth
  var searching = function (input, apply) {
    var timer = 0;
    input.addEventListener("input", function () {
      clearTimeout(timer);
      timer = setTimeout(apply, 120);
    });
  };

  var findings = function (section) {
    var tools = section.querySelector(".tools");
    var search = tools.querySelector("input[type=search]");
    var boxes = all(tools, "input[type=checkbox]");
    var said = tools.querySelector("[aria-live]");
    var causes = all(section, ".cause").map(function (cause) {
      var rows = all(cause, ".rows > li");
      return {
        node: cause, severity: cause.dataset.severity, more: cause.querySelector("details"),
        head: all(cause, "h4, h5, .message, .hint").map(function (node) { return node.textContent; }).join(" ").toLowerCase(),
        rows: rows.map(function (row) { return { node: row, text: row.textContent.toLowerCase() }; })
      };
    });
    var apply = function () {
      var wanted = search.value.trim().toLowerCase();
      var severities = boxes.filter(function (box) { return box.checked; }).map(function (box) { return box.value; });
      var count = 0;
      restore(section);
      causes.forEach(function (cause) {
        var fits = severities.indexOf(cause.severity) >= 0;
        var whole = fits && (!wanted || cause.head.indexOf(wanted) >= 0);
        var here = 0;
        var deep = false;
        cause.rows.forEach(function (row) {
          var shown = whole || (fits && row.text.indexOf(wanted) >= 0);
          row.node.hidden = !shown;
          here += shown ? 1 : 0;
          deep = deep || (shown && !whole && row.node.closest("details") !== null);
        });
        cause.node.hidden = here === 0;
        if (deep && cause.more) { open(cause.more); }
        count += here;
      });
      all(section, ".family").forEach(function (family) {
        family.hidden = !family.querySelector(".cause:not([hidden])");
      });
      said.textContent = wanted || severities.length < boxes.length ? counted(count, "finding") + " shown" : "";
    };
    searching(search, apply);
    boxes.forEach(function (box) { box.addEventListener("change", apply); });
    var toggle = tools.querySelector("button");
    if (toggle) {
      toggle.addEventListener("click", function () {
        var opens = toggle.getAttribute("aria-pressed") !== "true";
        all(section, ".cause details").forEach(function (details) { details.open = opens; });
        toggle.setAttribute("aria-pressed", String(opens));
      });
    }
    tools.hidden = false;
  };

  var packages = function (section) {
    var tools = section.querySelector(".tools");
    var search = tools.querySelector("input");
    var state = tools.querySelector("select");
    var said = tools.querySelector("[aria-live]");
    var rows = all(section, "tbody tr").map(function (row) {
      return { node: row, state: row.dataset.state, text: row.textContent.toLowerCase() };
    });
    var apply = function () {
      var wanted = search.value.trim().toLowerCase();
      var count = 0;
      restore(section);
      rows.forEach(function (row) {
        var shown = row.text.indexOf(wanted) >= 0 && (!state.value || row.state === state.value);
        row.node.hidden = !shown;
        count += shown ? 1 : 0;
      });
      if (wanted || state.value) { all(section, "details").forEach(open); }
      said.textContent = wanted || state.value ? counted(count, "package") + " shown" : "";
    };
    searching(search, apply);
    state.addEventListener("change", apply);
    all(section, "table").forEach(sortable);
    tools.hidden = false;
  };

  var sortable = function (table) {
    var heads = all(table, "thead th");
    heads.forEach(function (head, column) {
      var button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.textContent = head.textContent;
      head.textContent = "";
      head.appendChild(button);
      button.addEventListener("click", function () {
        var up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        var body = table.tBodies[0];
        var key = function (row) { return row.cells[column].textContent; };
        var order = new Intl.Collator("en", { numeric: true }).compare;
        Array.from(body.rows)
          .sort(function (one, other) { return (up ? 1 : -1) * order(key(one), key(other)); })
          .forEach(function (row) { body.appendChild(row); });
      });
    });
  };

  // the button stands behind the sentence, or behind its command where there are several
  var copyable = function (hint) {
    var codes = all(hint, "code[data-command]");
    codes.forEach(function (code) {
      copyButton(code, function (button) { if (codes.length > 1) { code.after(button); } else { hint.append(" ", button); } });
    });
  };

  var copyButton = function (code, place) {
    var button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy the command " + code.textContent);
    var said = function (word) {
      button.textContent = word;
      setTimeout(function () { button.textContent = "Copy"; }, 1500);
    };
    var select = function () { // where the page may not write the clipboard, the reader can
      var range = document.createRange();
      range.selectNodeContents(code);
      window.getSelection().removeAllRanges();
      window.getSelection().addRange(range);
      said(document.execCommand("copy") ? "Copied" : "Selected");
    };
    button.addEventListener("click", function () {
      if (!navigator.clipboard) { select(); return; }
      navigator.clipboard.writeText(code.textContent).then(function () { said("Copied"); }, select);
    });
    place(button);
  };

  all(document, "[data-part=findings]").forEach(findings);
  all(document, "[data-part=packages]").forEach(packages);
  all(document, ".hint").forEach(copyable);
})();
