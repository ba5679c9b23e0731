/** What a stage's submesh and logical mesh can be, for the controls that pin them. */
import type { Cluster } from '../model/cluster';

/** 1 x 2^k devices of one host, the whole host, or n whole hosts: Alpa, section 5.2. */
export function listSubmeshes(cluster: Cluster): string[] {
  const perHost = cluster.hosts[0]?.num_devices ?? 1;
  const shapes: string[] = [];
  for (let devices = 1; devices < perHost; devices *= 2) shapes.push(`1x${devices}`);
  for (let hosts = 1; hosts <= cluster.hosts.length; hosts++) shapes.push(`${hosts}x${perHost}`);
  return shapes;
}

/** Every way to see `count` devices as a mesh of two axes, the squarest first. */
export function listLogicalMeshes(count: number): string[] {
  const shapes: [number, number][] = [];
  for (let major = 1; major <= count; major++) {
    if (count % major === 0) shapes.push([major, count / major]);
  }
  shapes.sort(([a, b], [c, d]) => Math.abs(Math.log(a / b)) - Math.abs(Math.log(c / d)) || c - a);
  return shapes.map(([major, minor]) => `${major}x${minor}`);
}

/** Devices of a submesh such as `2x8`. */
export function countDevices(shape: string): number {
  return shape.split('x').reduce((product, part) => product * Number(part), 1);
}
