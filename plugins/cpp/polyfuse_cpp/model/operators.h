// Operators that no kernel computes, for models that run without Python: sorting. Above tensors.h.
#include <algorithm>
#include <vector>

namespace {
// A number that orders elements as torch does: -0.0 is 0.0, and NaN is greater than all else.
int64_t order_of(const char* at, int32_t dtype) {
  int64_t bits = 0, infinity = 0;
  switch (dtype) {
    case PF_BOOL:
    case PF_UINT8: return *(const uint8_t*)at;
    case PF_INT8: return *(const int8_t*)at;
    case PF_INT16: return *(const int16_t*)at;
    case PF_INT32: return *(const int32_t*)at;
    case PF_INT64: return *(const int64_t*)at;
    case PF_FLOAT16: bits = (int64_t)*(const uint16_t*)at << 48, infinity = INT64_C(0x7c00) << 48; break;
    case PF_BFLOAT16: bits = (int64_t)*(const uint16_t*)at << 48, infinity = INT64_C(0x7f80) << 48; break;
    case PF_FLOAT32: bits = (int64_t)*(const uint32_t*)at << 32, infinity = INT64_C(0x7f800000) << 32; break;
    default: bits = *(const int64_t*)at, infinity = INT64_C(0x7ff0000000000000);
  }
  const int64_t size = bits & INT64_MAX;
  return size > infinity ? INT64_MAX : bits < 0 ? -size : size;
}

struct ordered { int64_t order, index; };

// Where the first element of each row along a dimension is, in elements.
struct rows {
  int32_t rank, dim;
  const int64_t* sizes;
  int64_t count = 1;
  rows(int32_t r, int32_t d, const int64_t* n) : rank(r), dim(d), sizes(n) {
    for (int32_t k = 0; k < rank; ++k)
      if (k != dim) count *= sizes[k];
  }
  int64_t first(int64_t row, const int64_t* strides) const {
    int64_t at = 0;
    for (int32_t k = rank - 1; k >= 0; --k) {
      if (k == dim) continue;
      at += row % sizes[k] * strides[k];
      row /= sizes[k];
    }
    return at;
  }
};

void contiguous(int32_t rank, const int64_t* sizes, int64_t* strides) {
  int64_t next = 1;
  for (int32_t d = rank - 1; d >= 0; --d) {
    strides[d] = next;
    next *= sizes[d] > 1 ? sizes[d] : 1;
  }
}

// The first `count` elements of each row in their order, all of them if that is negative, and where they were. A result for
// which there is no word is let go.
int sorted(pf_ref tensor, int64_t dim, bool descending, int64_t count, pf_word* values, pf_word* positions) {
  if (dim < 0) dim += tensor->rank ? tensor->rank : 1;
  const int64_t length = tensor->rank ? tensor->sizes[dim] : 1, step = tensor->rank ? tensor->strides[dim] : 0;
  if (count > length) return fail("%lld of %lld elements were asked for", (long long)count, (long long)length);
  if (count < 0) count = length;
  int64_t sizes[PF_MAX_RANK], strides[PF_MAX_RANK];
  memcpy(sizes, tensor->sizes, sizeof sizes);
  if (tensor->rank) sizes[dim] = count;
  contiguous(tensor->rank, sizes, strides);
  pf_ref found = make_tensor(tensor->dtype, tensor->rank, sizes, strides);
  pf_ref where = make_tensor(PF_INT64, tensor->rank, sizes, strides);
  if (!found || !where) {
    release_value(nullptr, found);
    release_value(nullptr, where);
    return 1;
  }
  const rows all(tensor->rank, (int32_t)dim, tensor->sizes);
  const int64_t item = item_bytes[tensor->dtype], out_step = tensor->rank ? strides[dim] : 0;
  const auto before = [](const ordered& a, const ordered& b) {
    return a.order != b.order ? a.order < b.order : a.index < b.index;
  };
#pragma omp parallel for if (all.count > 1 && all.count * length > 32768)
  for (int64_t row = 0; row < all.count; ++row) {
    const char* from = tensor->data + all.first(row, tensor->strides) * item;
    const int64_t to = all.first(row, strides);
    std::vector<ordered> line((size_t)length);
    for (int64_t i = 0; i < length; ++i) {
      const int64_t order = order_of(from + i * step * item, tensor->dtype);
      line[i] = {descending ? ~order : order, i};
    }
    if (count == length) std::sort(line.begin(), line.end(), before);
    else std::partial_sort(line.begin(), line.begin() + count, line.end(), before);
    for (int64_t i = 0; i < count; ++i) {
      memcpy(found->data + (to + i * out_step) * item, from + line[i].index * step * item, item);
      ((int64_t*)where->data)[to + i * out_step] = line[i].index;
    }
  }
  if (values) values->ref = found;
  else release_value(nullptr, found);
  if (positions) positions->ref = where;
  else release_value(nullptr, where);
  return 0;
}
}  // namespace
