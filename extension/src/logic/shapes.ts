/** What a stage's submesh and logical mesh can be, for the controls that pin them. */
import type { Cluster, Host } from '../model/cluster';

/**
 * 1 x 2^k devices of one host, the whole host, or n whole hosts, of each kind of host. Twin of
 * alpaviz/cluster/submesh.py.
 */
export function listSubmeshes(cluster: Cluster): string[] {
  const kinds = groupByKind(cluster);
  if (kinds.size === 1) return listBlocks(cluster.hosts);
  return [...kinds].flatMap(([kind, hosts]) => listBlocks(hosts).map((block) => `${block} ${kind}`));
}

/** Hosts of each kind, which is named as `Cluster.kinds` does in Python. */
function groupByKind(cluster: Cluster): Map<string, Host[]> {
  const different = new Map<string, Host[]>();
  for (const host of cluster.hosts) {
    const key = JSON.stringify(host);
    different.set(key, [...(different.get(key) ?? []), host]);
  }
  const counts = new Map<string, number>();
  const kinds = new Map<string, Host[]>();
  for (const hosts of different.values()) {
    const type = hosts[0]?.device_type.name ?? '';
    const count = (counts.get(type) ?? 0) + 1;
    counts.set(type, count);
    kinds.set(count === 1 ? type : `${type}-${count}`, hosts);
  }
  return kinds;
}

function listBlocks(hosts: readonly Host[]): string[] {
  const perHost = hosts[0]?.num_devices ?? 1;
  const numHosts = hosts.length;
  const shapes: string[] = [];
  for (let devices = 1; devices < perHost; devices *= 2) {
    if (numHosts === 1 || perHost % devices === 0) shapes.push(`1x${devices}`);
  }
  for (let count = 1; count <= numHosts; count++) shapes.push(`${count}x${perHost}`);
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

/** Devices of a submesh such as `2x8` or `2x8 V100-16GB`. */
export function countDevices(shape: string): number {
  return (shape.split(' ')[0] ?? '').split('x').reduce((product, part) => product * Number(part), 1);
}
