declare module "prismjs/components/prism-core" {
  const Prism: {
    manual: boolean;
    languages: Record<string, unknown>;
    tokenize(text: string, grammar: unknown): (string | { type: string; content: never })[];
  };
  export default Prism;
}
declare module "prismjs/components/*";
