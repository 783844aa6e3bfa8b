// Flexible attention: the blocks of keys that a query sees stand in lists, of blocks that are partly hidden and of whole ones.
namespace pf {
#if PF_AVX512 && PF_X86_BUILTINS && PF_W == 16 && PF_DOT_BF16
// One kind of list, for each image, head and block of queries: `count` blocks, whose numbers are in `index`.
struct flex_list {
  const i32 *count, *index;
  i64 count_step[3], index_step[4];
  bool whole;
};
struct flex_lists {
  flex_list list[2];
  int lists;
  i64 images, heads, query_block, key_block;

  template <class T> bool is_shared(const attention_call<T>& c) const {
    return c.queries <= query_block && (heads == 1 || c.heads == c.key_heads);
  }
  // Blocks that lie side by side are one, up to what is multiplied at once.
  template <class T, class Each>
  void walk(const attention_call<T>& c, i64 image, i64 head, i64 first, i64, const Each& each) const {
    const i64 b = image % images, h = head % heads, row = first / query_block;
    for (int k = 0; k < lists; ++k) {
      const flex_list& of = list[k];
      const i64 count = of.count[b * of.count_step[0] + h * of.count_step[1] + row * of.count_step[2]];
      const i32* const index = of.index + b * of.index_step[0] + h * of.index_step[1] + row * of.index_step[2];
      for (i64 j = 0; j < count;) {
        i64 from = index[j * of.index_step[3]] * key_block, end = from + key_block;
        for (++j; j < count && index[j * of.index_step[3]] * key_block == end; ++j) end += key_block;
        for (end = index_min(end, c.keys); from < end; from += attention_keys)
          each(from, index_min(attention_keys, end - from), of.whole);
      }
    }
  }
};
#endif
}  // namespace pf
