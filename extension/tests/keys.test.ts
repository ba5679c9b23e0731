import { describe, expect, it } from 'vitest';
import { formatClock } from '../src/logic/format';
import { KEY_GROUPS, takesText } from '../src/logic/keys';

describe('keys', () => {
  it('are listed once in each place', () => {
    for (const { keys } of KEY_GROUPS) {
      const names = keys.flatMap(([each]) => each);
      expect(new Set(names).size).toBe(names.length);
    }
  });

  it('are text where text is typed, and only there', () => {
    expect(takesText({ tagName: 'INPUT', type: 'search' })).toBe(true);
    expect(takesText({ tagName: 'TEXTAREA' })).toBe(true);
    expect(takesText({ tagName: 'INPUT', type: 'range' })).toBe(false);
    expect(takesText({ tagName: 'BUTTON' })).toBe(false);
    expect(takesText(null)).toBe(false);
  });
});

describe('formatClock', () => {
  it('writes two digits for each part', () => {
    const at = new Date(2026, 0, 2, 3, 4, 5).getTime() / 1000;
    expect(formatClock(at)).toBe('03:04:05');
  });
});
