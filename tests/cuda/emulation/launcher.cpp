// Launches: blocks are shared out among the processor's cores, shared memory begins as poison, and what would end the
// process (a bad address, a division by zero) becomes an error of the launch.
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <condition_variable>
#include <thread>

#include "aside.h"
#include "checks.h"

namespace kestrel_machine {

static const unsigned MOST_CREWS = 8, MOST_WORKERS = 128;
static const int TIME_IS_UP = SIGURG;  // ignored by whoever doesn't wait for it
static const unsigned NUM_FAULTS = 4;
static const int FAULTS[NUM_FAULTS] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};

// A thread of the processor, and what it runs blocks on: of these one runs, and the others wait for other blocks.
struct Crew {
    pthread_t thread;
    std::atomic<Launch*> launch{nullptr};
    std::vector<Worker*> workers;
    sigjmp_buf on_fault;
};

static Crew crews[MOST_CREWS];
static std::atomic<Worker*> workers[MOST_WORKERS];  // of all crews
static std::atomic<unsigned> num_workers{0};

// Null: there are too many.
inline Worker* new_worker(Crew* crew) {
    unsigned index = num_workers++;
    if (index >= MOST_WORKERS) return nullptr;
    size_t bytes = 2 * REGION;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char* start = (char*)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (start == MAP_FAILED) abort();
    char* aligned = (char*)(((uintptr_t)start + REGION - 1) & ~(uintptr_t)(REGION - 1));
    if (aligned > start) munmap(start, aligned - start);
    munmap(aligned + REGION, start + bytes - aligned - REGION);
    Worker* worker = new (aligned) Worker();
    worker->copies = new Copies[MOST_THREADS];
    char* shared = (char*)mmap(nullptr, 3 * SHARED_REGION, PROT_NONE, flags, -1, 0);
    if (shared == MAP_FAILED || mprotect(shared + SHARED_REGION, SHARED_REGION, PROT_READ | PROT_WRITE)) abort();
    worker->shared_end = (unsigned char*)shared + 2 * SHARED_REGION;
    worker->crew = crew;
    crew->workers.push_back(worker);
    return workers[index] = worker;
}

// --- shared memory ----------------------------------------------------------------------------------------------------

// `__shared__` variables are thread-local ones of this library, and nothing else here is: all lie between two addresses.
static thread_local char shared_anchor;

struct SharedRange {
    ptrdiff_t before = 0;  // from the start of the calling thread's variables to the anchor
    size_t bytes = 0;
};

inline int look_at_library(dl_phdr_info* info, size_t, void* found) {
    uintptr_t here = (uintptr_t)&look_at_library;
    const ElfW(Phdr)* variables = nullptr;
    bool mine = false;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const ElfW(Phdr)& header = info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + header.p_vaddr;
        if (header.p_type == PT_LOAD && here >= start && here < start + header.p_memsz) mine = true;
        if (header.p_type == PT_TLS) variables = &header;
    }
    if (!mine) return 0;
    SharedRange* range = (SharedRange*)found;
    if (variables && info->dlpi_tls_data) {
        range->before = &shared_anchor - (char*)info->dlpi_tls_data;
        range->bytes = variables->p_memsz;
    }
    return 1;
}

inline const SharedRange& shared_range() {
    static const SharedRange range = [] {
        *(volatile char*)&shared_anchor = 0;  // there are none before the first use
        SharedRange found;
        dl_iterate_phdr(look_at_library, &found);
        return found;
    }();
    return range;
}

inline void poison_shared(Worker* worker, char* variables) {
    memset(variables, POISON, shared_range().bytes);
    memset(worker->dynamic, POISON, worker->launch->shared_bytes);
    unsigned char *before = worker->dynamic - SHARED_GUARD, *behind = worker->dynamic + worker->launch->shared_bytes;
    for (size_t i = 0; i < SHARED_GUARD; ++i) before[i] = behind[i] = GUARD[i & 1];
}

// Null where nothing was written beside it.
inline const char* damage_to_shared(const Worker* worker) {
    const unsigned char *before = worker->dynamic - SHARED_GUARD, *behind = worker->dynamic + worker->launch->shared_bytes;
    for (size_t i = 0; i < SHARED_GUARD; ++i) {
        if (before[i] != GUARD[i & 1]) return ": it wrote before its shared memory";
        if (behind[i] != GUARD[i & 1]) return ": it wrote behind its shared memory";
    }
    return nullptr;
}

// --- faults -----------------------------------------------------------------------------------------------------------

static struct sigaction handlers_before[NUM_FAULTS];

inline Worker* worker_of_stack(uintptr_t address) {
    for (unsigned i = 0; i < MOST_WORKERS; ++i) {
        Worker* worker = workers[i];
        if (worker && worker->launch && address - (uintptr_t)worker < REGION) return worker;
    }
    return nullptr;
}

inline void on_fault(int signal, siginfo_t* information, void* context) {
    Worker* worker = worker_of_stack(stack_pointer_of((ucontext_t*)context));
    if (worker) {
        Dl_info library = {};
        uintptr_t code = code_address_of((ucontext_t*)context);
        dladdr((void*)&on_fault, &library);
        std::string message = where(worker) + text(", thread %u: ", worker->current->thread.x);
        uintptr_t shared = (uintptr_t)worker->shared_end - 2 * SHARED_REGION;
        uintptr_t below = (uintptr_t)stack_bottom(worker, current(worker)->stack);
        if (signal == TIME_IS_UP)
            message += "it runs for too long";
        else if (signal == SIGFPE)
            message += "division of whole numbers by zero";
        else if (signal == SIGILL)
            message += "it must not come here";
        else if ((uintptr_t)information->si_addr - below < MEMORY_PAGE)
            message += "local memory is used up (64 KiB)";
        else if ((uintptr_t)information->si_addr - shared < 3 * SHARED_REGION)
            message += "it reaches far beyond its shared memory";
        else if (information->si_code == SI_KERNEL)
            message += "misaligned address, or one that can't be";  // the processor doesn't tell it
        else
            message += text("bad address %p", information->si_addr);
        record(worker->launch, message + text(" [code +0x%zx]", (size_t)(code - (uintptr_t)library.dli_fbase)));
        siglongjmp(worker->crew->on_fault, 1);
    }
    if (signal == TIME_IS_UP) return;  // it has just ended
    const struct sigaction* before = nullptr;
    for (unsigned i = 0; i < NUM_FAULTS; ++i)
        if (FAULTS[i] == signal) before = &handlers_before[i];
    if (before->sa_flags & SA_SIGINFO)
        before->sa_sigaction(signal, information, context);
    else if (before->sa_handler == SIG_DFL || before->sa_handler == SIG_IGN)
        sigaction(signal, before, nullptr);  // and the same happens again
    else
        before->sa_handler(signal);
}

inline void catch_faults() {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (unsigned i = 0; i < NUM_FAULTS; ++i) sigaction(FAULTS[i], &action, &handlers_before[i]);
    sigaction(TIME_IS_UP, &action, nullptr);
}

// Where the handler runs: the fiber's own stack may be used up.
inline stack_t new_signal_stack() {
    stack_t stack = {};
    stack.ss_size = 64 * 1024;
    stack.ss_sp = aligned_alloc(64, stack.ss_size);
    return stack;
}

// --- launches ---------------------------------------------------------------------------------------------------------

// With a block that nobody has begun. Null: there is none.
inline Worker* begin_next(Crew* crew, Launch* launch, char* variables) {
    uint64_t index = launch->next++;
    if (index >= launch->num_blocks) return nullptr;
    Worker* worker = nullptr;
    for (Worker* each : crew->workers)
        if (!each->launch) worker = each;
    if (!worker) worker = new_worker(crew);
    if (!worker) {
        record(launch, text("kernel %s: more than %u blocks at once", launch->kernel->name, MOST_WORKERS));
        return nullptr;
    }
    worker->launch = launch;
    worker->dynamic = worker->shared_end - SHARED_GUARD - (launch->shared_bytes + 15) / 16 * 16;
    worker->dimensions = {launch->block, 1, 1};
    worker->grid = launch->grid;
    poison_shared(worker, variables);
    begin_block(worker, launch->order.empty() ? index : launch->order[index]);
    return worker;
}

// With a block that can go on. Null: there is none any more, or the launch has failed.
inline Worker* next_worker(Crew* crew, Launch* launch, char* variables) {
    while (!launch->failed) {
        if (Worker* worker = take_back(launch, crew, variables)) return worker;
        std::string reason = hopeless(launch);
        if (!reason.empty()) {
            record(launch, reason);
            break;
        }
        if (Worker* worker = begin_next(crew, launch, variables)) return worker;
        bool waits = false;
        for (const Worker* each : crew->workers) waits |= each->launch != nullptr;
        if (!waits) break;
        usleep(20);  // for blocks of other crews
    }
    return nullptr;
}

// Runs blocks until none are left.
inline void work(Crew* crew, Launch* launch) {
    char* variables = &shared_anchor - shared_range().before;
    crew->launch = launch;
    if (sigsetjmp(crew->on_fault, 0) == 0) {
        while (Worker* worker = next_worker(crew, launch, variables)) {
            run_block(worker);
            if (const char* damage = damage_to_shared(worker)) record(launch, where(worker) + damage);
            if (launch->failed) break;
            if (!worker->living) {
                worker->launch = nullptr;
                ++launch->ended;
            } else if (waits_for_others(worker)) {
                put_aside(worker, variables, shared_range().bytes);
            } else {
                record(launch, deadlock(worker));
            }
        }
    }
    std::lock_guard<std::mutex> lock(launch->aside_mutex);
    if (launch->failed) launch->aside.clear();
    for (Worker* each : crew->workers) each->launch = nullptr;
    crew->launch = nullptr;
}

static std::atomic<time_t> time_limit{120};  // seconds

class Pool {
public:
    Pool() {
        cpu_set_t allowed;
        unsigned cores = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
        num_crews_ = cores < MOST_CREWS ? cores : MOST_CREWS;
        for (unsigned i = 1; i < num_crews_; ++i) std::thread(&Pool::help, this, &crews[i]).detach();
        signal_stack_ = new_signal_stack();
        catch_faults();
        std::thread(&Pool::watch, this).detach();
    }

    void run(Launch* launch) {
        std::lock_guard<std::mutex> one_at_a_time(running_);
        bool helped = launch->num_blocks > 1 && num_crews_ > 1;
        if (helped) {
            std::lock_guard<std::mutex> lock(mutex_);
            launch_ = launch;
            ++generation_;
        }
        if (helped) started_.notify_all();
        stack_t before;
        sigaltstack(&signal_stack_, &before);
        crews[0].thread = pthread_self();
        started_at_ = now();
        work(&crews[0], launch);
        sigaltstack(&before, nullptr);
        if (helped) {
            std::unique_lock<std::mutex> lock(mutex_);
            launch_ = nullptr;  // who is not awake yet needn't come any more
            ended_.wait(lock, [this] { return helping_ == 0; });
        }
        started_at_ = 0;
    }

private:
    static time_t now() {
        timespec time;
        clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
        return time.tv_sec + 1;
    }

    // Ends a launch that runs for longer than the limit.
    void watch() {
        for (;;) {
            usleep(250'000);
            time_t started = started_at_;
            if (!started || now() - started <= time_limit) continue;
            for (unsigned i = 0; i < num_crews_; ++i)
                if (crews[i].launch) pthread_kill(crews[i].thread, TIME_IS_UP);
        }
    }

    void help(Crew* crew) {
        crew->thread = pthread_self();
        stack_t stack = new_signal_stack();
        sigaltstack(&stack, nullptr);
        uint64_t seen = 0;
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            started_.wait(lock, [&] { return launch_ && generation_ != seen; });
            seen = generation_;
            Launch* launch = launch_;
            ++helping_;
            lock.unlock();
            work(crew, launch);
            lock.lock();
            if (--helping_ == 0) ended_.notify_one();
        }
    }

    std::mutex running_, mutex_;
    std::condition_variable started_, ended_;
    std::atomic<time_t> started_at_{0};  // 0: nothing runs
    Launch* launch_ = nullptr;
    uint64_t generation_ = 0;
    unsigned helping_ = 0, num_crews_;
    stack_t signal_stack_;
};

static std::string last_error;
static uint64_t order_seed = 0;
static unsigned most_shared = 0;  // of a block, on this card

inline int refuse(const char* name, const std::string& reason) {
    last_error = text("kernel %s: ", name) + reason;
    return 1;
}

int launch(const Kernel& kernel, const void* arguments, Triple grid, unsigned block, unsigned shared_bytes) {
    static Pool& pool = *new Pool;  // its threads outlive everything
    if (block == 0 || block > kernel.threads)
        return refuse(kernel.name, text("%u threads in a block, of at most %u", block, kernel.threads));
    if (!grid.x || !grid.y || !grid.z || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
        return refuse(kernel.name, text("a grid of (%u, %u, %u) blocks", grid.x, grid.y, grid.z));
    if (shared_bytes > most_shared)
        return refuse(kernel.name, text("%u bytes of shared memory, of at most %u", shared_bytes, most_shared));
    Launch launch;
    launch.kernel = &kernel;
    launch.arguments = arguments;
    launch.grid = grid;
    launch.block = block;
    launch.shared_bytes = shared_bytes;
    launch.num_blocks = (uint64_t)grid.x * grid.y * grid.z;
    launch.seed = order_seed;
    std::vector<uint32_t>& order = launch.order;
    if (launch.seed && launch.num_blocks <= (1u << 24)) {
        order.resize(launch.num_blocks);
        for (size_t i = 0; i < order.size(); ++i) {
            size_t other = random_number(launch.seed) % (i + 1);
            order[i] = order[other];
            order[other] = (uint32_t)i;
        }
    }
    pool.run(&launch);
    if (!launch.failed) return 0;
    last_error = launch.error;
    return 1;
}

}  // namespace kestrel_machine

#define KESTREL_EXPORT extern "C" __attribute__((visibility("default")))

// Of the last launch that failed.
KESTREL_EXPORT const char* kestrel_error() { return kestrel_machine::last_error.c_str(); }

// 0: blocks and threads in their order. Else: in another one, which this number decides.
KESTREL_EXPORT void kestrel_set_order(uint64_t seed) { kestrel_machine::order_seed = seed; }

// So much shared memory a launch may ask for, up to MOST_SHARED.
KESTREL_EXPORT void kestrel_set_most_shared(unsigned bytes) {
    kestrel_machine::most_shared = bytes < kestrel_machine::MOST_SHARED ? bytes : kestrel_machine::MOST_SHARED;
}

// Of so many processors the card is: as many blocks it surely runs at once.
KESTREL_EXPORT void kestrel_set_processors(unsigned count) { kestrel_machine::processors = count; }

// After so many seconds a launch fails.
KESTREL_EXPORT void kestrel_set_time_limit(unsigned seconds) { kestrel_machine::time_limit = seconds; }

// Index of the first of `count` guards, each of `bytes`, that doesn't hold the pattern any more; -1: all do.
KESTREL_EXPORT int64_t kestrel_damaged(const uint64_t* starts, uint64_t count, const void* pattern, uint64_t bytes) {
    for (uint64_t i = 0; i < count; ++i)
        if (memcmp((const void*)starts[i], pattern, bytes) != 0) return (int64_t)i;
    return -1;
}
