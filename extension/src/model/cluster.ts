/** As in alpaviz/cluster/measured.py. */
export interface MeasuredRate {
  op_class: string;
  dtype: string;
  floor_s: number;
  knots: [number, number][];
  parallel_devices: number;
}

export interface MeasuredCollective {
  kind: string;
  group_size: number;
  latency_s: number;
  seconds_per_byte: number;
  parallel_devices: number;
}

export interface MeasuredCosts {
  source: string;
  num_devices: number;
  rates: MeasuredRate[];
  collectives: MeasuredCollective[];
  memory_bandwidth: number;
  call_s: number;
  call_device_s: number;
}

/** As in alpaviz/cluster/description.py. */
export interface DeviceType {
  name: string;
  memory_bytes: number;
  memory_bandwidth: number;
  flops: [string, number][];
  measured: MeasuredCosts | null;
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
