/** As in alpaviz/cluster/description.py. */
export interface DeviceType {
  name: string;
  memory_bytes: number;
  memory_bandwidth: number;
  flops: [string, number][];
}

export interface Link {
  bandwidth: number;
  latency: number;
}

export interface Host {
  device_type: DeviceType;
  num_devices: number;
  link: Link;
}

export interface Cluster {
  name: string;
  hosts: Host[];
  network: Link;
  is_virtual: boolean;
}
