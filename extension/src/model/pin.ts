/** As in alpaviz/pins.py. */
export type PinKind = 'strategy' | 'spec' | 'layer_stage' | 'stage_submesh' | 'num_stages' | 'logical_mesh';

export interface Pin {
  kind: PinKind;
  subject: string | number | null;
  choice: string | number;
}

/** A pin with its sentence, as the kernel words it. */
export interface WordedPin extends Pin {
  text: string;
}
