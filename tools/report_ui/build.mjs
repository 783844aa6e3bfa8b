// Bundles the page of `polyfuse report` into core/polyfuse/reporting/assets, with the licences of what is in it.
import { createHash } from "node:crypto";
import { build } from "esbuild";
import { readFileSync, readdirSync, writeFileSync, existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const assets = join(here, "../../core/polyfuse/reporting/assets");

const done = await build({
  entryPoints: [join(here, "src/main.tsx")],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  charset: "utf8",
  metafile: true,
  write: false,
  absWorkingDir: here,
});
// an inline script ends at the first `</script`
const script = done.outputFiles[0].text.replaceAll("</script", "<\\/script").replaceAll("<!--", "<\\!--");
writeFileSync(join(assets, "report.js"), script);

const style = await build({ entryPoints: [join(here, "src/style.css")], minify: true, write: false });
writeFileSync(join(assets, "report.css"), style.outputFiles[0].text);

const packages = new Set();
for (const input of Object.keys(done.metafile.inputs)) {
  const found = input.match(/node_modules\/((?:@[^/]+\/)?[^/]+)\//);
  if (found) packages.add(found[1]);
}
const parts = [...packages].sort().map((name) => {
  const folder = join(here, "node_modules", name);
  const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((f) => /^licen[cs]e/i.test(f));
  const text = file && existsSync(join(folder, file)) ? readFileSync(join(folder, file), "utf8").trim() : "";
  return `${name} ${about.version} (${about.license})\n\n${text}`;
});
writeFileSync(
  join(assets, "LICENSES.txt"),
  `The report's page contains these libraries.\n\n${parts.join(`\n\n${"-".repeat(80)}\n\n`)}\n`,
);
// a test compares this with the files, so that nobody forgets to build
const digest = createHash("sha256");
for (const file of [...readdirSync(join(here, "src")).sort().map((name) => `src/${name}`), "build.mjs", "package-lock.json"]) {
  digest.update(`${file}\n`).update(readFileSync(join(here, file)));
}
writeFileSync(join(assets, "sources.sha256"), `${digest.digest("hex")}\n`);
console.log(`report.js ${(script.length / 1024).toFixed(0)} kB of ${packages.size} packages`);
