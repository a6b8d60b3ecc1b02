// Misuses verbs on soft0, each subcommand in one way, or not at all ("clean"): `verbena run
// --check` has to tell which. Ends with 0 in any case that it can.
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kBufferBytes = 16 * kPageBytes;
constexpr uint32_t kQueueKey = 0x1234;
constexpr int kAll = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                     IBV_ACCESS_REMOTE_ATOMIC;
constexpr int kLocalWrite = IBV_ACCESS_LOCAL_WRITE;

// IBV_QP_EX_WITH_ATOMIC_WRITE; 0 with headers that do not have it.
template <typename Extended>
constexpr uint64_t atomic_write_operation() {
  return requires(Extended & qp) { qp.wr_atomic_write; }
  ? 1ull << 12 : 0;
}
constexpr uint64_t kAtomicWriteOperation = atomic_write_operation<ibv_qp_ex>();

[[noreturn]] void fail(const char* what) {
  std::printf("FAILED: %s\n", what);
  std::exit(3);
}

void need(bool holds, const char* what) {
  if (!holds) fail(what);
}

struct Options {
  ibv_qp_type type = IBV_QPT_RC;
  int source_access = IBV_ACCESS_LOCAL_WRITE;
  int target_access = kAll;
  uint32_t depth = 8;
  int cqes = 64;
  bool channel = false;
  bool connected = true;
  bool extended = false;
  bool atomic_writes = false;  // with `extended`
  bool shared_receives = false;
  uint8_t max_rd_atomic = 4;
  uint32_t target_key = kQueueKey;
  uint32_t inline_bytes = 32;
};

// Two queue pairs of this process, connected to each other; `source` sends.
struct Pair {
  ibv_context* context = nullptr;
  ibv_pd* domain = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* send_cq = nullptr;
  ibv_cq* recv_cq = nullptr;
  ibv_srq* srq = nullptr;
  ibv_qp* source = nullptr;
  ibv_qp* target = nullptr;
  ibv_ah* handle = nullptr;
  char* out = nullptr;
  char* in = nullptr;
  ibv_mr* out_region = nullptr;
  ibv_mr* in_region = nullptr;

  explicit Pair(const Options& options = {});
  void close();

  ibv_sge sge(uint32_t size_bytes, size_t offset = 0) const {
    return {reinterpret_cast<uint64_t>(out + offset), size_bytes, out_region->lkey};
  }
  int post(ibv_wr_opcode opcode, ibv_sge piece, unsigned flags, uint64_t remote = 0,
           int count = 1) const;
  int post_receive(ibv_sge piece, ibv_qp* at = nullptr) const;
  ibv_sge receive_sge(uint32_t size_bytes, size_t offset = 0) const {
    return {reinterpret_cast<uint64_t>(in + offset), size_bytes, in_region->lkey};
  }
  static ibv_wc poll(ibv_cq* cq) {
    ibv_wc wc{};
    int got = 0;
    while ((got = ibv_poll_cq(cq, 1, &wc)) == 0) {
    }
    need(got == 1, "poll");
    return wc;
  }
};

char* map_buffer() {
  void* memory =
      mmap(nullptr, kBufferBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  need(memory != MAP_FAILED, "mmap");
  std::memset(memory, 7, kBufferBytes);
  return static_cast<char*>(memory);
}

ibv_context* open_soft() {
  ibv_device** list = ibv_get_device_list(nullptr);
  for (int i = 0; list != nullptr && list[i] != nullptr; ++i) {
    if (std::strcmp(ibv_get_device_name(list[i]), "soft0") != 0) continue;
    ibv_context* context = ibv_open_device(list[i]);
    ibv_free_device_list(list);
    return context;
  }
  fail("no soft0");
}

void to_init(ibv_qp* qp, uint32_t key) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  attributes.qp_access_flags = kAll;
  attributes.qkey = key;
  const int last = qp->qp_type == IBV_QPT_UD ? int{IBV_QP_QKEY} : int{IBV_QP_ACCESS_FLAGS};
  need(ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | last) == 0,
       "INIT");
}

void to_ready(ibv_qp* qp, uint32_t peer, uint8_t max_rd_atomic) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  int mask = IBV_QP_STATE;
  if (qp->qp_type != IBV_QPT_UD) {
    attributes.path_mtu = IBV_MTU_1024;
    attributes.dest_qp_num = peer;
    attributes.ah_attr.dlid = 1;
    attributes.ah_attr.port_num = 1;
    mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  }
  if (qp->qp_type == IBV_QPT_RC) {
    attributes.max_dest_rd_atomic = 4;
    attributes.min_rnr_timer = 1;
    mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  }
  need(ibv_modify_qp(qp, &attributes, mask) == 0, "RTR");
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = 14;
  attributes.retry_cnt = 7;
  attributes.rnr_retry = 7;
  attributes.max_rd_atomic = max_rd_atomic;
  mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (qp->qp_type == IBV_QPT_RC) {
    mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  need(ibv_modify_qp(qp, &attributes, mask) == 0, "RTS");
}

Pair::Pair(const Options& options) : context(open_soft()), domain(ibv_alloc_pd(context)) {
  need(domain != nullptr, "domain");
  if (options.channel) channel = ibv_create_comp_channel(context);
  if (options.extended) {
    ibv_cq_init_attr_ex init{};
    init.cqe = static_cast<uint32_t>(options.cqes);
    init.wc_flags = IBV_WC_EX_WITH_BYTE_LEN;
    send_cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(context, &init));
  } else {
    send_cq = ibv_create_cq(context, options.cqes, nullptr, channel, 0);
  }
  recv_cq = ibv_create_cq(context, options.cqes, nullptr, nullptr, 0);
  need(send_cq != nullptr && recv_cq != nullptr, "completion queues");
  if (options.shared_receives) {
    ibv_srq_init_attr init{};
    init.attr = {.max_wr = options.depth, .max_sge = 2, .srq_limit = 0};
    srq = ibv_create_srq(domain, &init);
    need(srq != nullptr, "shared receive queue");
  }
  const auto make = [&] {
    ibv_qp_init_attr_ex init{};
    init.send_cq = send_cq;
    init.recv_cq = recv_cq;
    init.srq = srq;
    init.cap = {.max_send_wr = options.depth,
                .max_recv_wr = options.depth,
                .max_send_sge = 2,
                .max_recv_sge = 2,
                .max_inline_data = options.inline_bytes};
    init.qp_type = options.type;
    init.comp_mask = IBV_QP_INIT_ATTR_PD;
    init.pd = domain;
    if (options.extended) {
      init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
      init.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE;
      if (options.atomic_writes) init.send_ops_flags |= kAtomicWriteOperation;
    }
    ibv_qp* qp = ibv_create_qp_ex(context, &init);
    need(qp != nullptr, "queue pair");
    return qp;
  };
  source = make();
  target = make();
  out = map_buffer();
  in = map_buffer();
  out_region = ibv_reg_mr(domain, out, kBufferBytes, options.source_access);
  in_region = ibv_reg_mr(domain, in, kBufferBytes, options.target_access);
  need(out_region != nullptr && in_region != nullptr, "regions");
  if (!options.connected) return;
  to_init(source, kQueueKey);
  to_init(target, options.target_key);
  to_ready(target, source->qp_num, options.max_rd_atomic);
  to_ready(source, target->qp_num, options.max_rd_atomic);
  if (options.type == IBV_QPT_UD) {
    ibv_ah_attr attributes{};
    attributes.dlid = 1;
    attributes.port_num = 1;
    handle = ibv_create_ah(domain, &attributes);
    need(handle != nullptr, "address handle");
  }
}

void Pair::close() {
  if (handle != nullptr) need(ibv_destroy_ah(handle) == 0, "destroy handle");
  for (ibv_qp* qp : {source, target}) need(ibv_destroy_qp(qp) == 0, "destroy queue pair");
  if (srq != nullptr) need(ibv_destroy_srq(srq) == 0, "destroy shared receive queue");
  for (ibv_cq* cq : {send_cq, recv_cq}) need(ibv_destroy_cq(cq) == 0, "destroy queue");
  if (channel != nullptr) need(ibv_destroy_comp_channel(channel) == 0, "destroy channel");
  for (ibv_mr* region : {out_region, in_region}) {
    if (region != nullptr) need(ibv_dereg_mr(region) == 0, "deregister");
  }
  need(ibv_dealloc_pd(domain) == 0, "domain");
  need(ibv_close_device(context) == 0, "close");
}

int Pair::post(ibv_wr_opcode opcode, ibv_sge piece, unsigned flags, uint64_t remote,
               int count) const {
  std::vector<ibv_sge> pieces(static_cast<size_t>(count), piece);
  ibv_send_wr wr{};
  wr.wr_id = 77;
  wr.sg_list = pieces.data();
  wr.num_sge = count;
  wr.opcode = opcode;
  wr.send_flags = flags;
  if (source->qp_type == IBV_QPT_UD) {
    wr.wr.ud = {.ah = handle, .remote_qpn = target->qp_num, .remote_qkey = kQueueKey};
  } else if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    wr.wr.atomic = {.remote_addr = reinterpret_cast<uint64_t>(in) + remote,
                    .compare_add = 1,
                    .swap = 0,
                    .rkey = in_region->rkey};
  } else {
    wr.wr.rdma = {.remote_addr = reinterpret_cast<uint64_t>(in) + remote, .rkey = in_region->rkey};
  }
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(source, &wr, &bad);
}

int Pair::post_receive(ibv_sge piece, ibv_qp* at) const {
  ibv_recv_wr wr{};
  wr.wr_id = 88;
  wr.sg_list = &piece;
  wr.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  if (srq != nullptr) return ibv_post_srq_recv(srq, &wr, &bad);
  return ibv_post_recv(at != nullptr ? at : target, &wr, &bad);
}

// --- what is right ---

void clean_transport(const Options& options) {
  Pair pair(options);
  const bool datagrams = options.type == IBV_QPT_UD;
  for (uint32_t i = 0; i < 3 * options.depth; ++i) {
    need(pair.post_receive(pair.receive_sge(256, i % 4 * 256)) == 0, "receive");
    pair.out[0] = static_cast<char>(i);
    need(pair.post(IBV_WR_SEND, pair.sge(128), IBV_SEND_SIGNALED) == 0, "send");
    need(Pair::poll(pair.send_cq).status == IBV_WC_SUCCESS, "sent");
    need(Pair::poll(pair.recv_cq).status == IBV_WC_SUCCESS, "received");
    if (datagrams) continue;
    // Unsignaled, of buffers of their own, covered by a signaled one.
    for (size_t at : {1, 2, 3}) {
      pair.out[at * 1024] = static_cast<char>(i);
      need(pair.post(IBV_WR_RDMA_WRITE, pair.sge(64, at * 1024),
                     at == 3 ? unsigned{IBV_SEND_SIGNALED} : 0, 8 * kPageBytes) == 0,
           "write");
    }
    need(Pair::poll(pair.send_cq).status == IBV_WC_SUCCESS, "written");
  }
  if (options.type == IBV_QPT_RC && !options.extended) {
    need(pair.post(IBV_WR_RDMA_READ, pair.sge(64), IBV_SEND_SIGNALED) == 0, "read");
    need(Pair::poll(pair.send_cq).status == IBV_WC_SUCCESS, "was read");
    need(pair.post(IBV_WR_ATOMIC_FETCH_AND_ADD, pair.sge(8), IBV_SEND_SIGNALED) == 0, "add");
    need(Pair::poll(pair.send_cq).status == IBV_WC_SUCCESS, "added");
  }
  pair.close();
}

// Posts a write, and returns how it completed.
ibv_wc_status write_by_batch(const Pair& pair) {
  ibv_qp_ex* qp = ibv_qp_to_qp_ex(pair.source);
  ibv_cq_ex* cq = reinterpret_cast<ibv_cq_ex*>(pair.send_cq);
  ibv_wr_start(qp);
  qp->wr_id = 5;
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_rdma_write(qp, pair.in_region->rkey, reinterpret_cast<uint64_t>(pair.in));
  ibv_wr_set_sge(qp, pair.out_region->lkey, reinterpret_cast<uint64_t>(pair.out), 64);
  need(ibv_wr_complete(qp) == 0, "complete");
  ibv_poll_cq_attr none{};
  int got = 0;
  while ((got = ibv_start_poll(cq, &none)) == ENOENT) {
  }
  need(got == 0, "start poll");
  const ibv_wc_status status = cq->status;
  ibv_end_poll(cq);
  return status;
}

void clean_extended() {
  Pair pair({.extended = true});
  for (int i = 0; i < 20; ++i) {
    pair.out[0] = static_cast<char>(i);
    need(write_by_batch(pair) == IBV_WC_SUCCESS, "status");
  }
  pair.close();
}

// As ibv_wr_atomic_write(), which the oldest headers do not have. Returns whether these do.
template <typename Extended>
bool add_atomic_write(Extended* qp, uint32_t rkey, uint64_t address) {
  const uint64_t value = 5;
  if constexpr (requires { qp->wr_atomic_write; }) {
    qp->wr_atomic_write(qp, rkey, address, &value);
    return true;
  }
  return false;
}

// Posts one, and returns how it completed.
ibv_wc_status write_atomically(const Pair& pair, uint64_t remote = 0) {
  ibv_qp_ex* qp = ibv_qp_to_qp_ex(pair.source);
  ibv_wr_start(qp);
  qp->wr_id = 6;
  qp->wr_flags = IBV_SEND_SIGNALED;
  add_atomic_write(qp, pair.in_region->rkey, reinterpret_cast<uint64_t>(pair.in) + remote);
  need(ibv_wr_complete(qp) == 0, "complete");
  return Pair::poll(pair.send_cq).status;
}

// More than the completion queue has room for, one after the other.
void clean_atomic_writes() {
  Pair pair({.cqes = 8, .extended = true, .atomic_writes = true});
  for (uint64_t i = 0; i < 30; ++i) {
    need(write_atomically(pair, i * 8) == IBV_WC_SUCCESS, "written at once");
  }
  pair.close();
}

void clean_events() {
  Pair pair({.channel = true});
  need(ibv_req_notify_cq(pair.send_cq, 0) == 0, "arm");
  for (int i = 0; i < 5; ++i) {
    need(pair.post(IBV_WR_RDMA_WRITE, pair.sge(64), IBV_SEND_SIGNALED) == 0, "write");
    ibv_cq* cq = nullptr;
    void* data = nullptr;
    need(ibv_get_cq_event(pair.channel, &cq, &data) == 0, "event");
    ibv_ack_cq_events(cq, 1);
    need(ibv_req_notify_cq(cq, 0) == 0, "arm again");
    ibv_wc wc{};
    while (ibv_poll_cq(cq, 1, &wc) > 0) {
    }
  }
  pair.close();
}

// Several threads on two queue pairs of one completion queue.
void clean_threads() {
  Pair pair({.depth = 64});
  std::atomic<int> completed{0};
  constexpr int kPosts = 500;
  std::atomic<int> posted{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (int left = kPosts; left > 0;) {
        if (pair.post(IBV_WR_RDMA_WRITE, pair.sge(64), IBV_SEND_SIGNALED) == 0) {
          --left;
          ++posted;
        }
      }
    });
    threads.emplace_back([&] {
      ibv_wc wc[4];
      while (completed.load() < 2 * kPosts) {
        const int got = ibv_poll_cq(pair.send_cq, 4, wc);
        need(got >= 0, "poll");
        completed.fetch_add(got);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  pair.close();
}

// The address of a piece of a null region is no memory of the program: several use the same, which
// changes and belongs to others meanwhile.
void clean_null_regions() {
  Pair pair(Options{});
  ibv_mr* const region = ibv_alloc_null_mr(pair.domain);
  need(region != nullptr, "null region");
  const ibv_sge piece = {reinterpret_cast<uint64_t>(pair.out), 64, region->lkey};
  for (int i = 0; i < 2; ++i) need(pair.post_receive(piece) == 0, "receive");
  for (int i = 0; i < 2; ++i) {
    need(pair.post(IBV_WR_SEND, piece, IBV_SEND_SIGNALED) == 0, "send");
    pair.out[0] ^= 1;
    need(Pair::poll(pair.send_cq).status == IBV_WC_SUCCESS, "sent");
    need(Pair::poll(pair.recv_cq).status == IBV_WC_SUCCESS, "received");
  }
  need(ibv_dereg_mr(region) == 0, "deregister");
  pair.close();
}

// Regions have addresses of their own: two may have the same, and one may have that of memory which
// something else uses.
void clean_own_addresses() {
  Pair pair(Options{});
  ibv_mr* regions[2];
  for (int i = 0; i < 2; ++i) {
    regions[i] = ibv_reg_mr(pair.domain, pair.in + i * kPageBytes, kPageBytes,
                            kLocalWrite | IBV_ACCESS_ZERO_BASED);
    need(regions[i] != nullptr, "zero-based region");
    need(pair.post_receive({uint64_t{16} * static_cast<unsigned>(i), 64, regions[i]->lkey}) == 0,
         "receive");
  }
  for (int i = 0; i < 2; ++i) {
    need(pair.post(IBV_WR_SEND, pair.sge(64), IBV_SEND_SIGNALED) == 0, "send");
    need(Pair::poll(pair.send_cq).status == IBV_WC_SUCCESS, "sent");
    need(Pair::poll(pair.recv_cq).status == IBV_WC_SUCCESS, "received");
  }
  for (ibv_mr* region : regions) need(ibv_dereg_mr(region) == 0, "deregister");
  pair.close();
}

void clean() {
  clean_null_regions();
  clean_own_addresses();
  clean_transport({});
  clean_transport({.source_access = kAll});
  clean_transport({.type = IBV_QPT_UC});
  clean_transport({.type = IBV_QPT_UD});
  clean_transport({.shared_receives = true});
  clean_extended();
  if (kAtomicWriteOperation != 0) clean_atomic_writes();
  clean_events();
  clean_threads();
}

// --- what is not ---

void change_buffer(const Options& options, unsigned first_flags) {
  Pair pair(options);
  need(pair.post(IBV_WR_RDMA_WRITE, pair.sge(8192), first_flags) == 0, "write");
  pair.out[8000] ^= 1;
  if ((first_flags & IBV_SEND_SIGNALED) == 0) {
    need(pair.post(IBV_WR_RDMA_WRITE, pair.sge(64, 3 * kPageBytes), IBV_SEND_SIGNALED) == 0, "2");
  }
  Pair::poll(pair.send_cq);
  pair.close();
}

void change_extended() {
  Pair pair({.extended = true});
  ibv_qp_ex* qp = ibv_qp_to_qp_ex(pair.source);
  ibv_wr_start(qp);
  qp->wr_id = 5;
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_rdma_write(qp, pair.in_region->rkey, reinterpret_cast<uint64_t>(pair.in));
  ibv_wr_set_sge(qp, pair.out_region->lkey, reinterpret_cast<uint64_t>(pair.out), 64);
  need(ibv_wr_complete(qp) == 0, "complete");
  pair.out[0] ^= 1;
  ibv_cq_ex* cq = reinterpret_cast<ibv_cq_ex*>(pair.send_cq);
  ibv_poll_cq_attr none{};
  need(ibv_start_poll(cq, &none) == 0, "start poll");
  ibv_end_poll(cq);
  pair.close();
}

void overlap_receives(uint32_t second_offset) {
  Pair pair;
  need(pair.post_receive(pair.receive_sge(256)) == 0, "receive");
  need(pair.post_receive(pair.receive_sge(256, second_offset)) == 0, "receive");
  pair.close();
}

// The same memory by two regions, of which one has other addresses.
void overlap_receives_of_two_regions() {
  Pair pair;
  need(ibv_dereg_mr(pair.out_region) == 0, "deregister");
  pair.out_region =
      ibv_reg_mr(pair.domain, pair.in, kPageBytes, kLocalWrite | IBV_ACCESS_ZERO_BASED);
  need(pair.out_region != nullptr, "zero-based region");
  need(pair.post_receive(pair.receive_sge(256)) == 0, "receive");
  need(pair.post_receive({128, 256, pair.out_region->lkey}) == 0, "receive");
  pair.close();
}

// Waits until the thread is within a write to standard error, where that can be seen.
void wait_for_write(pid_t thread) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", thread);
  for (;;) {
    long number = -1;
    long fd = -1;
    FILE* file = std::fopen(path, "r");
    if (file == nullptr) return;
    const int read = std::fscanf(file, "%ld %li", &number, &fd);
    const bool failed = std::ferror(file) != 0;
    std::fclose(file);
    if (failed) return;
    if (read == 2 && number == SYS_write && fd == STDERR_FILENO) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Starts this program again with a full pipe as standard error, which the checks look at early; it
// gets the descriptor of the other end.
[[noreturn]] void start_with_full_pipe() {
  int ends[2];
  need(pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO, "pipe");
  need(fcntl(STDERR_FILENO, F_SETFL, O_NONBLOCK) == 0, "does not wait");
  const char filling[4096] = {};
  while (write(STDERR_FILENO, filling, sizeof(filling)) > 0) {
  }
  need(fcntl(STDERR_FILENO, F_SETFL, 0) == 0, "waits");
  execl("/proc/self/exe", "check_misuse_process", "full-pipe", std::to_string(ends[0]).c_str(),
        nullptr);
  fail("exec");
}

// One thread's report finds no room in the pipe: the others' verbs, and fork(), go on.
void report_to_full_pipe(const char* other_end) {
  if (*other_end == '-') start_with_full_pipe();
  alarm(120);
  Pair pair;
  need(pair.post_receive(pair.receive_sge(256)) == 0, "receive");
  std::atomic<pid_t> reporter{0};
  std::thread thread([&] {
    reporter.store(static_cast<pid_t>(syscall(SYS_gettid)));
    need(pair.post_receive(pair.receive_sge(256, 128)) == 0, "overlapping receive");
  });
  while (reporter.load() == 0) std::this_thread::yield();
  wait_for_write(reporter.load());
  need(pair.post(IBV_WR_RDMA_WRITE, pair.sge(64), IBV_SEND_SIGNALED, 8 * kPageBytes) == 0, "write");
  need(Pair::poll(pair.send_cq).status == IBV_WC_SUCCESS, "written");
  const pid_t child = fork();
  if (child == 0) _exit(0);
  int status = 0;
  need(waitpid(child, &status, 0) == child && status == 0, "child");
  char drained[1 << 16];
  need(read(std::atoi(other_end), drained, sizeof(drained)) > 0, "drain");
  thread.join();
  pair.close();
}

void receive_over_send() {
  Pair pair;
  need(pair.post(IBV_WR_RDMA_WRITE, pair.sge(64), IBV_SEND_SIGNALED) == 0, "write");
  need(pair.post_receive(pair.sge(256)) == 0, "receive");
  Pair::poll(pair.send_cq);
  pair.close();
}

void unmap(bool in_use) {
  Pair pair;
  if (in_use) need(pair.post_receive(pair.receive_sge(256)) == 0, "receive");
  munmap(pair.in, kBufferBytes);
  pair.close();
}

void use_unmapped() {
  Pair pair;
  munmap(pair.in, kBufferBytes);
  need(mmap(pair.in, kBufferBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
            -1, 0) == pair.in,
       "mmap");
  pair.post_receive(pair.receive_sge(256));
  pair.close();
}

void deregister_in_use() {
  Pair pair;
  need(pair.post_receive(pair.receive_sge(256)) == 0, "receive");
  need(ibv_dereg_mr(pair.in_region) == 0, "deregister");
  pair.in_region = nullptr;
  pair.close();
}

void remote_access(const Options& options, ibv_wr_opcode opcode, uint32_t size_bytes,
                   uint64_t remote) {
  Pair pair(options);
  need(pair.post(opcode, pair.sge(size_bytes), IBV_SEND_SIGNALED, remote) == 0, "post");
  need(Pair::poll(pair.send_cq).status != IBV_WC_SUCCESS, "it is refused");
  pair.close();
}

void remote_access_of_atomic_write(const Options& options, uint64_t remote) {
  Pair pair(options);
  need(write_atomically(pair, remote) != IBV_WC_SUCCESS, "it is refused");
  pair.close();
}

void local_access() {
  Pair pair({.source_access = 0});
  need(pair.post(IBV_WR_RDMA_READ, pair.sge(64), IBV_SEND_SIGNALED) == 0, "post");
  need(Pair::poll(pair.send_cq).status == IBV_WC_LOC_PROT_ERR, "it is refused");
  pair.close();
}

void receive_access() {
  Pair pair({.target_access = IBV_ACCESS_REMOTE_READ});
  need(pair.post_receive(pair.receive_sge(256)) == 0, "receive");
  pair.close();
}

void never_signal() {
  Pair pair;
  for (int i = 0; i < 8; ++i) {
    need(pair.post(IBV_WR_RDMA_WRITE, pair.sge(64), 0) == 0, "write");
  }
  need(pair.post(IBV_WR_RDMA_WRITE, pair.sge(64), 0) != 0, "it is full");
  pair.close();
}

void overrun() {
  Pair pair({.cqes = 4});
  for (int i = 0; i < 5; ++i) {
    need(pair.post_receive(pair.receive_sge(64, static_cast<size_t>(i) * 64)) == 0, "receive");
  }
  pair.close();
}

void no_grh_room() {
  Pair pair({.type = IBV_QPT_UD});
  need(pair.post_receive(pair.receive_sge(32)) == 0, "receive");
  pair.close();
}

// As write_by_batch().
ibv_wc_status write_by_post(const Pair& pair) {
  need(pair.post(IBV_WR_RDMA_WRITE, pair.sge(64), IBV_SEND_SIGNALED) == 0, "write");
  return Pair::poll(pair.send_cq).status;
}

// Contexts that are opened one after the other, without faults and with such that break each queue
// pair.
void mixed_networks() {
  for (const bool faulty : {false, true, false}) {
    if (faulty) {
      setenv("VERBENA_FAULT", "qp-error=1", 1);
    } else {
      unsetenv("VERBENA_FAULT");
    }
    Pair plain;
    Pair extended({.extended = true});
    need((write_by_post(plain) != IBV_WC_SUCCESS) == faulty, "post");
    need((write_by_batch(extended) != IBV_WC_SUCCESS) == faulty, "batch");
    plain.close();
    extended.close();
  }
}

// Another thread has the lock of a stream until its input comes, which is never.
void end_beside_a_reader() {
  int ends[2];
  need(pipe(ends) == 0 && dup2(ends[0], STDIN_FILENO) == STDIN_FILENO, "pipe");
  std::thread([] { std::fgetc(stdin); }).detach();
  while (ftrylockfile(stdin) == 0) {
    funlockfile(stdin);
    std::this_thread::yield();
  }
  no_grh_room();
}

void wrong_key() {
  Pair pair({.type = IBV_QPT_UD, .target_key = 0x4321});
  need(pair.post_receive(pair.receive_sge(256)) == 0, "receive");
  need(pair.post(IBV_WR_SEND, pair.sge(64), IBV_SEND_SIGNALED) == 0, "send");
  Pair::poll(pair.send_cq);
  pair.close();
}

void too_long_inline() {
  Pair pair;
  need(pair.post(IBV_WR_RDMA_WRITE, pair.sge(200), IBV_SEND_INLINE) != 0, "it is refused");
  pair.close();
}

void too_many_pieces() {
  Pair pair;
  need(pair.post(IBV_WR_RDMA_WRITE, pair.sge(8), 0, 0, 3) != 0, "it is refused");
  pair.close();
}

void wrong_state() {
  Pair pair({.connected = false});
  need(pair.post_receive(pair.receive_sge(64)) != 0, "RESET");
  to_init(pair.source, kQueueKey);
  need(pair.post(IBV_WR_RDMA_WRITE, pair.sge(8), 0) != 0, "INIT");
  pair.close();
}

void unaligned_atomic() {
  Pair pair;
  need(pair.post(IBV_WR_ATOMIC_FETCH_AND_ADD, pair.sge(8), IBV_SEND_SIGNALED, 4) == 0, "post");
  Pair::poll(pair.send_cq);
  pair.close();
}

void no_reads() {
  Pair pair({.max_rd_atomic = 0});
  // Some devices refuse it, others never carry it out.
  if (pair.post(IBV_WR_RDMA_READ, pair.sge(8), IBV_SEND_SIGNALED) == 0) Pair::poll(pair.send_cq);
  pair.close();
}

void ignore_errors() {
  Pair pair({.target_access = IBV_ACCESS_LOCAL_WRITE});
  for (int i = 0; i < 6; ++i) {
    need(pair.post(IBV_WR_RDMA_WRITE, pair.sge(8), IBV_SEND_SIGNALED) == 0, "post");
    Pair::poll(pair.send_cq);
  }
  pair.close();
}

// Until something was reported.
void wait_for_report(const char* log) {
  constexpr auto kPatience = std::chrono::minutes(4);
  const auto began = std::chrono::steady_clock::now();
  struct stat status {};
  while (stat(log, &status) != 0 || status.st_size == 0) {
    need(std::chrono::steady_clock::now() - began < kPatience, "nothing was reported");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void acknowledge_late(const char* log) {
  Pair pair({.channel = true});
  need(ibv_req_notify_cq(pair.send_cq, 0) == 0, "arm");
  need(pair.post(IBV_WR_RDMA_WRITE, pair.sge(64), IBV_SEND_SIGNALED) == 0, "write");
  ibv_cq* cq = nullptr;
  void* data = nullptr;
  need(ibv_get_cq_event(pair.channel, &cq, &data) == 0, "event");
  Pair::poll(pair.send_cq);
  // The destruction waits for this, once it is reported.
  std::thread rescue([&] {
    wait_for_report(log);
    ibv_ack_cq_events(cq, 1);
  });
  pair.close();
  rescue.join();
}

void sleep_over_completion(const char* log) {
  Pair pair({.channel = true});
  need(pair.post(IBV_WR_RDMA_WRITE, pair.sge(64), IBV_SEND_SIGNALED) == 0, "write");
  need(ibv_req_notify_cq(pair.send_cq, 0) == 0, "arm");
  // Woken by another send, as hardware may not be.
  std::thread rescue([&] {
    wait_for_report(log);
    need(pair.post(IBV_WR_RDMA_WRITE, pair.sge(64, kPageBytes), IBV_SEND_SIGNALED) == 0, "2");
  });
  ibv_cq* cq = nullptr;
  void* data = nullptr;
  need(ibv_get_cq_event(pair.channel, &cq, &data) == 0, "event");
  ibv_ack_cq_events(cq, 1);
  rescue.join();
  pair.close();
}

void sleep_unarmed(const char* log) {
  Pair pair({.channel = true});
  need(ibv_req_notify_cq(pair.send_cq, 0) == 0, "arm");
  need(pair.post(IBV_WR_RDMA_WRITE, pair.sge(64), IBV_SEND_SIGNALED) == 0, "write");
  ibv_cq* cq = nullptr;
  void* data = nullptr;
  need(ibv_get_cq_event(pair.channel, &cq, &data) == 0, "event");
  Pair::poll(pair.send_cq);
  std::thread rescue([&] {
    wait_for_report(log);
    need(ibv_req_notify_cq(pair.send_cq, 0) == 0, "arm");
    need(pair.post(IBV_WR_RDMA_WRITE, pair.sge(64, kPageBytes), IBV_SEND_SIGNALED) == 0, "2");
  });
  need(ibv_get_cq_event(pair.channel, &cq, &data) == 0, "event");
  ibv_ack_cq_events(cq, 2);
  rescue.join();
  pair.close();
}

// One place, however the compiler unrolls its caller's loop.
[[gnu::noinline]] void lose_channel(ibv_context* context) {
  need(ibv_create_comp_channel(context) != nullptr, "channel");
}

void leak() {
  ibv_context* context = open_soft();
  for (int i = 0; i < 2; ++i) lose_channel(context);
  Pair pair;
  ibv_reg_mr(pair.domain, pair.in, 4096, kLocalWrite);
  ibv_create_comp_channel(pair.context);
}

void wrong_order() {
  Pair pair;
  need(ibv_dealloc_pd(pair.domain) == EBUSY, "it is refused");
  need(ibv_destroy_cq(pair.send_cq) == EBUSY, "it is refused");
  pair.close();
}

void deregister_twice() {
  Pair pair;
  ibv_mr* region = ibv_reg_mr(pair.domain, pair.in, 4096, kLocalWrite);
  need(ibv_dereg_mr(region) == 0, "once");
  need(ibv_dereg_mr(region) != 0, "twice");
  pair.close();
}

void post_to_destroyed() {
  Pair pair;
  ibv_qp* other = pair.source;
  need(ibv_destroy_qp(other) == 0, "destroy");
  need(pair.post(IBV_WR_RDMA_WRITE, pair.sge(8), 0) != 0, "it is refused");
  ibv_qp_init_attr init{};
  init.send_cq = pair.send_cq;
  init.recv_cq = pair.recv_cq;
  init.cap = {.max_send_wr = 1,
              .max_recv_wr = 1,
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_data = 0};
  init.qp_type = IBV_QPT_RC;
  pair.source = ibv_create_qp(pair.domain, &init);
  pair.close();
}

void post_in_child() {
  Pair pair;
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = pair.post(IBV_WR_RDMA_WRITE, pair.sge(8), 0) != 0;
    _exit(refused ? 0 : 4);
  }
  int status = 0;
  need(waitpid(child, &status, 0) == child && status == 0, "the child is refused");
  pair.close();
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<void()>> ways = {
      {"clean", clean},
      {"mixed-networks", mixed_networks},
      {"buffer-changed", [] { change_buffer({}, IBV_SEND_SIGNALED); }},
      {"buffer-changed-unsignaled", [] { change_buffer({}, 0); }},
      {"buffer-changed-shared", [] { change_buffer({.source_access = kAll}, IBV_SEND_SIGNALED); }},
      {"buffer-changed-extended", change_extended},
      {"receive-overlap", [] { overlap_receives(128); }},
      {"receive-overlap-of-regions", overlap_receives_of_two_regions},
      {"receive-same-buffer", [] { overlap_receives(0); }},
      {"full-pipe", [argv] { report_to_full_pipe(argv[2]); }},
      {"receive-over-send", receive_over_send},
      {"unmapped-in-use", [] { unmap(true); }},
      {"unmapped-used", use_unmapped},
      {"unmapped-registered", [] { unmap(false); }},
      {"deregistered-in-use", deregister_in_use},
      {"remote-access",
       [] { remote_access({.target_access = IBV_ACCESS_LOCAL_WRITE}, IBV_WR_RDMA_WRITE, 64, 0); }},
      {"remote-range", [] { remote_access({}, IBV_WR_RDMA_READ, 64, kBufferBytes - 16); }},
      {"remote-access-atomic-write",
       [] {
         remote_access_of_atomic_write(
             {.target_access = IBV_ACCESS_LOCAL_WRITE, .extended = true, .atomic_writes = true}, 0);
       }},
      {"unaligned-atomic-write",
       [] { remote_access_of_atomic_write({.extended = true, .atomic_writes = true}, 4); }},
      {"local-access", local_access},
      {"receive-access", receive_access},
      {"send-queue-stuck", never_signal},
      {"cq-overrun", overrun},
      {"grh-room", no_grh_room},
      {"grh-room-beside-reader", end_beside_a_reader},
      {"queue-key", wrong_key},
      {"inline-size", too_long_inline},
      {"too-many-sges", too_many_pieces},
      {"wrong-state", wrong_state},
      {"atomic-form", unaligned_atomic},
      {"read-depth", no_reads},
      {"ignored-error", ignore_errors},
      {"unacknowledged-events", [argv] { acknowledge_late(argv[2]); }},
      {"lost-wakeup", [argv] { sleep_over_completion(argv[2]); }},
      {"unarmed-sleep", [argv] { sleep_unarmed(argv[2]); }},
      {"leak", leak},
      {"destroy-order", wrong_order},
      {"deregistered-twice", deregister_twice},
      {"use-after-destroy", post_to_destroyed},
      {"after-fork", post_in_child},
  };
  const auto way = argc == 3 ? ways.find(argv[1]) : ways.end();
  if (way == ways.end()) fail("usage: check_misuse_process WAY LOG");
  way->second();
  std::printf("done\n");
  return 0;
}
