// Work of CUDA's libraries on device memory (library.h): it is put into streams here, and done by the process that has the
// device (compute.py). A part of runtime.cpp, which includes it.

namespace emulator {

size_t size_of(uint32_t type) {
  switch (type) {
    case CUDA_R_8I:
    case CUDA_R_8U:
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2:
      return 1;
    case CUDA_R_16F:
    case CUDA_R_16BF:
      return 2;
    case CUDA_R_32F:
    case CUDA_R_32I:
    case CUDA_R_32U:
      return 4;
    case CUDA_R_64F:
    case CUDA_C_32F:
    case CUDA_R_64I:
    case CUDA_R_64U:
      return 8;
    case CUDA_C_64F:
      return 16;
    default:
      return 0;
  }
}

void called(const char *call) { enter(call); }

void refuse(const char *call, int status, const std::string &reason) {
  explain(status, format("%s: %s", call, reason.c_str()));
}

bool broken() { return sticky || channel < 0; }

int compute_capability() { return device.major * 10 + device.minor; }

// The pieces of memory that an operand has at each of its places: bytes that follow each other.
template <class F>
void pieces(const Operand &each, const std::vector<uint64_t> &places, F f) {
  const int64_t size = int64_t(size_of(each.type));
  if (each.column_step == 1 && each.row_step != 1) {  // row by row
    Operand turned = each;
    std::swap(turned.rows, turned.columns);
    std::swap(turned.row_step, turned.column_step);
    return pieces(turned, places, f);
  }
  const bool whole = each.row_step == 1 && each.column_step == each.rows;  // columns follow each other
  const int64_t columns = whole ? std::min<int64_t>(each.columns, 1) : each.columns;
  const int64_t together = whole ? each.rows * each.columns : each.row_step == 1 ? each.rows : 1;
  const int64_t rows = whole || each.row_step == 1 ? std::min<int64_t>(each.rows, 1) : each.rows;
  for (uint64_t place : places)
    for (int64_t batch = 0; batch < (each.how & Operand::POINTERS ? 1 : each.batches); ++batch)
      for (int64_t column = 0; column < columns; ++column)
        for (int64_t row = 0; row < rows; ++row)
          f(place + (batch * each.batch_step + column * each.column_step + row * each.row_step) * size,
            uint64_t(together * size));
}

// An operand's memory is touched: see Marked::settle. What is outside of any, compute.py finds.
void settle(const Operand &each, const std::vector<uint64_t> &places) {
  if (!each.rows || !each.columns || !each.batches) return;
  const int64_t size = int64_t(size_of(each.type));
  int64_t from = 0, to = size;
  const int64_t batches = each.how & Operand::POINTERS ? 1 : each.batches;
  for (const int64_t reach : {(batches - 1) * each.batch_step * size, (each.columns - 1) * each.column_step * size,
                              (each.rows - 1) * each.row_step * size})
    (reach < 0 ? from : to) += reach;
  for (uint64_t place : places)
    if (const Marked there = find_range(place + from, size_t(to - from)); there.size) there.settle();
}

// The addresses of an operand's matrices.
std::vector<uint64_t> places_of(const Operand &each) {
  const uint64_t at = reinterpret_cast<uint64_t>(each.at);
  if (!(each.how & Operand::POINTERS)) return {at};
  const size_t bytes = each.batches * sizeof at;
  const Marked array = find_range(at, bytes);
  if (!array.size) return {};  // compute.py says so
  array.settle();
  std::vector<uint64_t> places(each.batches);
  memcpy(places.data(), own(at), bytes);
  return places;
}

// Scalars of the host are read when the call is made, in `values`.
cudaError_t compute_now(const char *call, const char *operation, const std::vector<Operand> &operands,
                        const std::vector<std::string> &values, const std::vector<int64_t> &numbers) {
  std::lock_guard lock(guard);
  if (sticky) return last_error;
  in_flight = nullptr;
  const Packet place = where(nullptr);
  Packet packet;
  packet.text(call).text(operation).add(uint32_t(undefined)).add(uint32_t(operands.size()));
  std::vector<Range> ranges;
  const bool looks = several || !mapped().empty();
  for (size_t n = 0; n < operands.size(); ++n) {
    const Operand &each = operands[n];
    const auto places = each.how & Operand::ON_HOST ? std::vector<uint64_t>() : places_of(each);
    packet.text(each.name).add(each.type).add(each.how);
    for (int64_t number : {each.batches, each.columns, each.rows, each.batch_step, each.column_step, each.row_step})
      packet.add(number);
    packet.add(reinterpret_cast<uint64_t>(each.at)).add(uint32_t(places.size()));
    for (uint64_t address : places) packet.add(address);
    packet.text(values[n]);
    settle(each, places);
    if (!looks) continue;
    pieces(each, places, [&](uint64_t address, uint64_t bytes) {
      ranges.push_back({address, address + bytes, each.how & (READS | WRITES)});
    });
    if (each.how & Operand::POINTERS) {
      const uint64_t at = reinterpret_cast<uint64_t>(each.at);
      ranges.push_back({at, at + each.batches * sizeof at, READS});
    }
  }
  packet.add(uint32_t(numbers.size()));
  for (int64_t number : numbers) packet.add(number);
  packet.bytes(place.data().data(), place.data().size());
  Answer answer = ask(Request::COMPUTE, packet);
  const auto error = cudaError_t(answer.take<int32_t>());
  if (!error) {
    for (const Operand &each : operands)
      if (each.how & Operand::ON_HOST && each.how & Operand::WRITES)
        answer.take(const_cast<void *>(each.at), size_t(each.rows) * size_of(each.type));
    std::sort(ranges.begin(), ranges.end(), [](const Range &a, const Range &b) { return a.begin < b.begin; });
    touches(call, std::move(ranges), false);
  }
  protect_managed(true);
  record(error);
  sticky |= error != cudaSuccess;
  return error;
}

cudaError_t compute(const char *call, const char *operation, cudaStream_t stream, std::vector<Operand> operands,
                    std::vector<int64_t> numbers, bool waits) {
  if (sticky) return last_error;
  if (channel < 0) return record(cudaErrorNoDevice);
  if (waits && captures().count(stream)) return forbidden_in_capture(call, stream);
  std::vector<std::string> values(operands.size());
  for (size_t n = 0; n < operands.size(); ++n)
    if (const Operand &each = operands[n]; each.how & Operand::ON_HOST && each.how & Operand::READS)
      values[n].assign(static_cast<const char *>(each.at), size_of(each.type));
  const auto work = [=] { return compute_now(call, operation, operands, values, numbers); };
  const cudaError_t error = in_stream(stream, call, work, cudaGraphNodeTypeKernel);
  return error || !waits ? error : synchronised(stream_of(stream).clock);
}

cudaError_t copy_matrix(const char *call, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                        size_t height, bool to_device, cudaStream_t stream, bool waits) {
  const cudaMemcpyKind kind = to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
  const auto work = [=] { return copy_2d(call, to, to_pitch, from, from_pitch, width, height, kind); };
  const cudaError_t error = waits ? work() : in_stream(stream, call, work);
  if (waits) protect_managed(false);
  return error;
}

}  // namespace emulator
