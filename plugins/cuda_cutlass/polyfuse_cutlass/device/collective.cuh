// A GEMM by CUTLASS's collectives for Hopper. What is done with the results is an epilogue of our own: a class
// whose only work is the generated function `finish`, where CUTLASS would store a tile.
//
// In terms of the result, x are the rows and y the columns of what the multiplier makes.

// Each warp transposes its results in shared memory, 32 columns of 16 rows at a time, so that each thread finishes
// VEC neighbours in memory. Chunks of 16 bytes change coordinates in each row: neither rows of pairs nor fragments of rows
// meet in a bank.
constexpr int CHUNK = 32, FRAGMENT = 16 * CHUNK;
PF_INLINE int transposed(int row, int column) {
  return row * CHUNK + (column / 4 ^ ((row & 3) << 1 | (row & 1))) * 4 + column % 4;
}

struct Finish {
  typedef cutlass::epilogue::NoSmemWarpSpecialized DispatchPolicy, EpilogueSchedule;
  typedef Acc ElementAccumulator, ElementCompute, ElementScalar, ElementOutput, ElementC, ElementD;
  typedef cute::Stride<int64_t, cute::_1, int64_t> StrideC, StrideD;
  typedef void GmemTiledCopyC, GmemTiledCopyD;
  struct ThreadEpilogueOp {
    typedef Acc ElementAccumulator, ElementCompute, ElementScalar, ElementOutput, ElementC, ElementD;
    static constexpr int kCount = 1;
  };
  struct SharedStorage {
    alignas(16) Acc fragment[WARPS][FRAGMENT];
  };
  typedef SharedStorage TensorStorage;
  typedef Args Arguments;
  typedef Args Params;

  template <class Shape>
  static constexpr Params to_underlying_arguments(const Shape&, const Arguments& args, void*) { return args; }
  template <class Shape> static size_t get_workspace_size(const Shape&, const Arguments&) { return 0; }
  template <class Shape>
  static cutlass::Status initialize_workspace(const Shape&, const Arguments&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }
  template <class Shape> static bool can_implement(const Shape&, const Arguments&) { return true; }

  const Params& args;
  CUTLASS_HOST_DEVICE Finish(const Params& params) : args(params) {}

  template <class Shape, class Tile, class Coordinate, class Engine, class Layout, class Multiply, class Rest>
  CUTLASS_DEVICE void operator()(Shape shape, Tile tile, Coordinate coordinate, const cute::Tensor<Engine, Layout>& sum,
                                 Multiply multiply, Rest, int thread, char* shared) {
    const int rows = cute::get<0>(shape), columns = cute::get<1>(shape);
    const int x0 = cute::get<0>(coordinate) * int(cute::size<0>(tile)), y0 = cute::get<1>(coordinate) * int(cute::size<1>(tile));
    const int batch = cute::get<3>(coordinate), lane = threadIdx.x % 32;
    Acc* fragment = ((SharedStorage*)shared)->fragment[threadIdx.x / 32 % WARPS];
    auto coordinates = multiply.get_thread_slice(thread).partition_C(
        cute::make_identity_tensor(cute::make_shape(cute::size<0>(tile), cute::size<1>(tile))));
    constexpr int COLUMNS = 8 * cute::size<0, 2>(Layout{}), UNITS = FRAGMENT / VEC;
    CUTLASS_PRAGMA_UNROLL
    for (int m = 0; m < cute::size<1>(Layout{}); ++m) {
      CUTLASS_PRAGMA_UNROLL
      for (int n = 0; n < cute::size<2>(Layout{}); ++n) {
        const auto first = coordinates(0, m, n);
        const int row = x0 + int(cute::get<0>(first)) - lane / 4, column = y0 + int(cute::get<1>(first)) - lane % 4 * 2;
        CUTLASS_PRAGMA_UNROLL
        for (int chunk = 0; chunk < COLUMNS / CHUNK; ++chunk) {
          CUTLASS_PRAGMA_UNROLL
          for (int j = 0; j < CHUNK / 8; ++j) {
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < 4; ++i)
              fragment[transposed(lane / 4 + i / 2 * 8, j * 8 + lane % 4 * 2 + i % 2)] =
                  sum(cute::make_coord(i % 2, i / 2, chunk * (CHUNK / 8) + j), m, n);
          }
          __syncwarp();
#pragma unroll UNROLL
          for (int unit = lane; unit < UNITS; unit += 32) {
            const int dx = VEC_X ? unit % (16 / VEC) * VEC : unit / (CHUNK / VEC);
            const int dy = VEC_X ? unit / (16 / VEC) : unit % (CHUNK / VEC) * VEC;
            const int x = row + dx, y = column + chunk * CHUNK + dy;
            if (x < rows && y < columns) {
              Acc value[VEC];
#pragma unroll
              for (int v = 0; v < VEC; ++v) value[v] = fragment[transposed(dx + (VEC_X ? v : 0), dy + (VEC_X ? 0 : v))];
              finish(args, batch, x, y, value);
            }
          }
          __syncwarp();
        }
      }
    }
  }
};

typedef cutlass::epilogue::collective::detail::Sm90TmaWarpSpecializedAdapter<Finish> Epilogue;
typedef cute::Shape<cute::Int<ROWS>, cute::Int<COLUMNS>, cute::Int<DEPTH>> Tile;
typedef cute::Shape<cute::Int<CLUSTER_ROWS>, cute::Int<CLUSTER_COLUMNS>, cute::_1> Cluster;
typedef typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Left, LeftLayout, 16 / sizeof(Left), Right, RightLayout,
    16 / sizeof(Right), Acc, Tile, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<int(sizeof(typename Epilogue::SharedStorage))>,
    Schedule>::CollectiveOp Mainloop;
typedef cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue, Scheduler> Kernel;
typedef cutlass::gemm::device::GemmUniversalAdapter<Kernel> Gemm;

// Steps of an operand between rows, depths and matrices; one of the first two is one.
template <class Steps> Steps steps(i64 row, i64 depth, i64 batch) {
  Steps result{};
  if constexpr (cute::is_static<cute::remove_cvref_t<decltype(cute::get<0>(result))>>::value) cute::get<1>(result) = depth;
  else cute::get<0>(result) = row;
  cute::get<2>(result) = batch;
  return result;
}

// `numbers`: rows, columns, depth, batches; address of the left operand, its steps between rows, depths and matrices;
// the same of the right one.
static typename Gemm::Arguments arguments_of(const Args& args, const i64* numbers, int multiprocessors) {
  typename Gemm::Arguments result{};
  result.mode = cutlass::gemm::GemmUniversalMode::kGemm;
  result.problem_shape = {int(numbers[0]), int(numbers[1]), int(numbers[2]), int(numbers[3])};
  result.mainloop.ptr_A = (const Left*)numbers[4];
  result.mainloop.dA = steps<typename Kernel::StrideA>(numbers[5], numbers[6], numbers[7]);
  result.mainloop.ptr_B = (const Right*)numbers[8];
  result.mainloop.dB = steps<typename Kernel::StrideB>(numbers[9], numbers[10], numbers[11]);
  result.epilogue = args;
  result.hw_info.sm_count = multiprocessors;
  result.scheduler.max_swizzle_size = 8;
  return result;
}
static int accepts(const typename Gemm::Arguments& arguments) { return int(Gemm::can_implement(arguments)); }
