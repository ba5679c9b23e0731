// The one entry point, run as `node build.mjs`: no nested npm, so it works with any node binary.
// Type-checks, then builds the JupyterLab extension (alpaviz/labextension) and the widget (alpaviz/static).
import { execFileSync } from 'node:child_process';
import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const here = dirname(fileURLToPath(import.meta.url));
const run = (...args) => execFileSync(process.execPath, args, { stdio: 'inherit', cwd: here });

run('node_modules/typescript/bin/tsc');
if (!process.argv.includes('--widget-only')) {
  run(
    'node_modules/@jupyter/builder/lib/build-labextension.js',
    '--core-package-file',
    'node_modules/@jupyterlab/core-meta/core.package.json',
    ...process.argv.slice(2),
    '.',
  );
}
const common = { absWorkingDir: here, bundle: true, minify: true, target: 'es2022', logLevel: 'info' };
await build({
  ...common,
  entryPoints: ['src/widget/widget.ts'],
  format: 'esm',
  outfile: '../alpaviz/static/widget.js',
});
await build({ ...common, entryPoints: ['style/alpaviz.css'], outfile: '../alpaviz/static/widget.css' });
