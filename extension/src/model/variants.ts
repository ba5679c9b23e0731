/** As in alpaviz/stage_variants.py and alpaviz/widget/variant_offers.py. */
import type { DiffRow } from './planner-state';

/** An op's strategy, and the best that its stage can do with it; null where nothing fits. */
export interface Regret {
  strategy: string;
  stage_s: number | null;
  delta_s: number | null;
  share: number | null;
  is_chosen: boolean;
  is_exact: boolean;
  gap: number;
  stage_bytes: number | null;
}

export interface OfferedVariant {
  key: string;
  stage_s: number;
  stage_bytes: number;
  step_s: number;
  is_optimal: boolean;
  fits: boolean;
  num_differences: number;
  differences: DiffRow[];
}

export interface OfferedVariants {
  stage: number;
  limit_bytes: number;
  present: OfferedVariant;
  variants: OfferedVariant[];
}
