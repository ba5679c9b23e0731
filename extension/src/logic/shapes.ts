/** What a stage's submesh and logical mesh can be, for the controls that pin them. */
import type { Cluster } from '../model/cluster';

/** 1 x 2^k devices of one host, the whole host, or n whole hosts. Twin of alpaviz/cluster/submesh.py. */
export function listSubmeshes(cluster: Cluster): string[] {
  const perHost = cluster.hosts[0]?.num_devices ?? 1;
  const numHosts = cluster.hosts.length;
  const shapes: string[] = [];
  for (let devices = 1; devices < perHost; devices *= 2) {
    if (numHosts === 1 || perHost % devices === 0) shapes.push(`1x${devices}`);
  }
  for (let hosts = 1; hosts <= numHosts; hosts++) shapes.push(`${hosts}x${perHost}`);
  return shapes;
}

/**
 * Meshes of one and two axes over a submesh, no axis of one device unless it is the only one. Inside a host all links
 * are alike, so 2x4 is the same as 4x2 and left out; across hosts both are offered.
 */
export function listLogicalMeshes(submesh: string): string[] {
  const count = countDevices(submesh);
  const isOneHost = submesh.startsWith('1x');
  const shapes = [String(count)];
  for (let major = count - 1; major > 1; major--) {
    const minor = count / major;
    if (Number.isInteger(minor) && minor > 1 && (!isOneHost || major >= minor)) shapes.push(`${major}x${minor}`);
  }
  return shapes;
}

/** Devices of a submesh such as `2x8`. */
export function countDevices(shape: string): number {
  return shape.split('x').reduce((product, part) => product * Number(part), 1);
}
