/** Sharding rules and strategies as text, taken apart for drawing. */

/** One dimension of a term: the factors that it is made of, `['h', 'd']` for `(h d)`; empty for a `1`. */
export type DimFactors = string[];

export interface RuleTerms {
  operands: DimFactors[][];
  results: DimFactors[][];
}

function readTerm(text: string): DimFactors[] {
  const words = text.trim().match(/\([^)]*\)|[^\s()]+/g) ?? [];
  if (words.length === 1 && words[0] === '·') return [];
  return words.map((word) => {
    if (word === '1') return [];
    return word.startsWith('(') ? word.slice(1, -1).trim().split(/\s+/) : [word];
  });
}

/** `b m k, b k n -> b m n` to terms; terms are empty where the text is no rule. */
export function readRule(rule: string): RuleTerms {
  const [left = '', right = ''] = rule.split('->');
  const read = (side: string) => (side.trim() === '' ? [] : side.split(',').map(readTerm));
  return { operands: read(left), results: read(right) };
}

/** `m:x k:y>1` to mesh axes by factor. A factor may have several axes, `c:x>0 c:y>0`. */
export function readStrategy(strategy: string): Map<string, string> {
  const axes = new Map<string, string>();
  for (const word of strategy.split(/\s+/)) {
    const [factor, rest] = word.split(':');
    if (factor !== undefined && rest !== undefined)
      axes.set(factor, (axes.get(factor) ?? '') + rest.replace(/>.*$/, ''));
  }
  return axes;
}
