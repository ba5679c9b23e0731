// The one entry point, run as `node build.mjs`: no nested npm, so it works with any node binary.
// Type-checks, then builds the JupyterLab extension (alpaviz/labextension) and the widget (alpaviz/static).
import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const here = dirname(fileURLToPath(import.meta.url));
const run = (...args) => execFileSync(process.execPath, args, { stdio: 'inherit', cwd: here });

run('node_modules/typescript/bin/tsc');
const common = { absWorkingDir: here, bundle: true, minify: true, target: 'es2022', logLevel: 'info' };
// The worker travels as text in both builds: no second file to be served, and one copy of dagre.
const worker = await build({
  ...common,
  entryPoints: ['src/graph/layout-worker.ts'],
  format: 'esm',
  banner: { js: readFileSync(`${here}/node_modules/@dagrejs/dagre/dist/dagre.esm.js.LEGAL.txt`, 'utf8').trim() },
  write: false,
});
const source = `export const SOURCE = ${JSON.stringify(worker.outputFiles[0].text)};\n`;
writeFileSync(`${here}/lib/graph/layout-worker-source.js`, source);
const workerText = {
  name: 'worker-text',
  setup(bundling) {
    bundling.onResolve({ filter: /\/layout-worker-source$/ }, () => ({ path: 'source', namespace: 'worker-text' }));
    bundling.onLoad({ filter: /.*/, namespace: 'worker-text' }, () => ({ contents: source }));
  },
};
if (!process.argv.includes('--widget-only')) {
  run(
    'node_modules/@jupyter/builder/lib/build-labextension.js',
    '--core-package-file',
    'node_modules/@jupyterlab/core-meta/core.package.json',
    ...process.argv.slice(2),
    '.',
  );
}
await build({
  ...common,
  plugins: [workerText],
  entryPoints: ['src/widget/widget.ts'],
  format: 'esm',
  outfile: '../alpaviz/static/widget.js',
});
await build({ ...common, entryPoints: ['style/alpaviz.css'], outfile: '../alpaviz/static/widget.css' });
