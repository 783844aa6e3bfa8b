// A GEMM by CUTLASS's templates for Ampere. What is done with the results is a visitor of our own, whose only work
// is the generated function `finish`: CUTLASS transposes results in shared memory and shows them to it, ACCESS
// neighbours of a row at a time.
typedef cutlass::gemm::GemmShape<ROWS, COLUMNS, DEPTH> Tile;
typedef cutlass::gemm::GemmShape<WARP_ROWS, WARP_COLUMNS, DEPTH> WarpTile;
typedef cutlass::epilogue::threadblock::OutputTileThreadLayout<Tile, WarpTile, Result, ACCESS, 1> Threads;

struct Finish {
  struct SharedStorage {};
  typedef Args Arguments;
  typedef Args Params;
  template <class Shape>
  static constexpr Params to_underlying_arguments(const Shape&, const Arguments& args, void*) { return args; }
  template <class Shape> static size_t get_workspace_size(const Shape&, const Arguments&) { return 0; }

  const Params* args;
  CUTLASS_HOST_DEVICE Finish() {}
  CUTLASS_HOST_DEVICE Finish(const Params& params, const SharedStorage&) : args(&params) {}

  template <class Coordinates, class Shape> struct Callbacks : cutlass::epilogue::threadblock::detail::EmptyCallbacks {
    Coordinates coordinates;
    Shape shape;
    const Params* args;
    CUTLASS_DEVICE Callbacks(Coordinates coordinates_, Shape shape_, const Params* args_)
        : coordinates(coordinates_), shape(shape_), args(args_) {}
    template <class Element, int N>
    CUTLASS_DEVICE auto visit(int step, int row, int column, int, const cutlass::Array<Element, N>& sums) {
      const auto coordinate = coordinates(cute::_0{}, column, row, step);
      const int x = cute::get<0>(coordinate), y = cute::get<1>(coordinate), batch = cute::get<2>(coordinate);
      CUTLASS_PRAGMA_UNROLL
      for (int first = 0; first < N; first += VEC) {
        if (x < cute::get<0>(shape) && y + first < cute::get<1>(shape)) {
          Acc value[VEC];
          CUTLASS_PRAGMA_UNROLL
          for (int v = 0; v < VEC; ++v) value[v] = sums[first + v];
          finish(*args, batch, x, y + first, value);
        }
      }
      return sums;
    }
  };
  template <class Shape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread, Shape shape) {
    auto coordinates = cute::group_modes<3, 6>(Threads::partition(cute::make_identity_tensor(shape), thread, tile));
    return Callbacks<decltype(coordinates), Shape>(coordinates, shape, args);
  }
};

typedef typename cutlass::gemm::kernel::DefaultGemmWithVisitor<
    Left, LeftLayout, cutlass::ComplexTransform::kNone, 16 / sizeof(Left), Right, RightLayout,
    cutlass::ComplexTransform::kNone, 16 / sizeof(Right), Result, cutlass::layout::RowMajor, ACCESS, Acc, Acc,
    cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80, Tile, WarpTile, Instruction, Finish,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, STAGES, Operation, 1>::GemmKernel
    Kernel;
typedef cutlass::gemm::device::GemmUniversalBase<Kernel> Gemm;

// `numbers`: rows, columns, depth, batches; address of the left operand, its steps between rows, depths and matrices;
// the same of the right one.
static typename Gemm::Arguments arguments_of(const Args& args, const i64* numbers, int) {
  const int batches = int(numbers[3]);
  return typename Gemm::Arguments(
      batches > 1 ? cutlass::gemm::GemmUniversalMode::kBatched : cutlass::gemm::GemmUniversalMode::kGemm,
      {int(numbers[0]), int(numbers[1]), int(numbers[2])}, batches, args, (const void*)numbers[4],
      (const void*)numbers[8], nullptr, nullptr, numbers[7], numbers[11], 0, 0,
      LEFT_ALONG ? numbers[6] : numbers[5], RIGHT_ALONG ? numbers[10] : numbers[9], 0, 0);
}
// What CUTLASS would refuse are results whose rows it cannot store as it likes; it does not store them.
static int accepts(const typename Gemm::Arguments&) { return 0; }
