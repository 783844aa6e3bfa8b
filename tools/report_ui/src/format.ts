const UNITS: [number, string][] = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

function scaled(value: number, unit: string): string {
  for (const [size, prefix] of UNITS) {
    if (Math.abs(value) >= size) return `${digits(value / size)} ${prefix}${unit}`;
  }
  return `${digits(value)} ${unit}`;
}

function digits(value: number): string {
  const size = Math.abs(value);
  if (size >= 100 || Number.isInteger(Number(value.toPrecision(6)))) return value.toFixed(0);
  return value.toFixed(size >= 10 ? 1 : 2);
}

/** A number for an axis. */
export const short = (value: number): string => scaled(value, "").replace(" ", "").trim();
export const bytes = (value: number): string => scaled(value, "B");
export const perSecond = (value: number, unit: string): string => `${scaled(value, unit)}/s`;
export const count = (value: number): string => value.toLocaleString("en");

export function ms(value: number | null): string {
  if (value === null) return "–";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} ns`;
  if (value < 1) return `${digits(value * 1e3)} µs`;
  return value < 1000 ? `${digits(value)} ms` : `${digits(value / 1e3)} s`;
}

export const seconds = (value: number): string => ms(value * 1e3);

export function plural(number: number, one: string, many = `${one}s`): string {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** An operator without what all of them share. */
export const op = (name: string): string => name.replace(/^aten\./, "").replace(/\.default$/, "");
