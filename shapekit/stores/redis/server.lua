-- Key access: one script call runs calls on one key, on the keys of a composite's parts together, or
-- one call on each of several keys.
--
-- KEYS: the keys. ARGV[1]: {tag or a tag for each part, the least TTL in ms, the spec, {the version of the
-- overrides that the caller knows, when the first of them ends}}; now and then also the description of the
-- program, {for how many seconds it is kept, field, text …}, for the last key. ARGV[2]: the calls, {operation, now
-- or false, skew, arguments …}. ARGV[3]: the key with the overrides of the name; it is not in KEYS, because the
-- user need not have permission to change it. Then, for each key that another configuration has written: {its
-- number, the expected value in hex, the state to continue from instead, and the tag and the spec of that
-- configuration, to decode the value if it is another one}. If the description of a tag is gone: {its number,
-- "lost" and the tag, false}; such a key counts as cold.
--
-- The linker puts before this text the twins; METHODS, the method of each operation (true: it reads the state
-- itself); READS, whether it returns only its answer; and MOST_COST, the largest cost it may have (true: what the
-- program can admit). The last line, which it adds, runs `one`, `each` or `parts`.
--
-- Everything is decided before anything is written. A value is the tag of the configuration that wrote it, a
-- number, and the elements of the frozen state.

local LINGER_MS = 1000

local head, calls = cjson.decode(ARGV[1]), cjson.decode(ARGV[2])
local tags, floor_ms = head[1], head[2]
local program

local function hex(raw)
    return (string.gsub(raw, ".", function(byte) return string.format("%02x", string.byte(byte)) end))
end

local server_now
local function time_of(call)
    if call[2] then return Exact.whole("now", call[2], 0, 2^52) end
    if not server_now then
        local time = redis.call("TIME")
        server_now = time[1] * 1000000 + time[2]
    end
    return server_now
end

-- The value at a key may be anything. A state consists of whole numbers that a double holds exactly, of text, and
-- of false for a cold part; any other damage is found where the state is used.
local function check_stored(stored)
    for _, value in pairs(stored) do
        local kind = type(value)
        if kind == "number" then
            if value % 1 ~= 0 or value > Exact.LARGEST or value < -Exact.LARGEST then damaged() end
        elseif kind == "table" then
            check_stored(value)
        end
    end
end

-- The arguments about keys that another configuration has written; and such keys without an argument, all of
-- which are reported at once.
local adopted, foreign = {}, nil
for place = 4, #ARGV do
    local other = cjson.decode(ARGV[place])
    adopted[other[1]] = other
end

local function read(index, owner, tag)
    local raw = redis.call("GET", KEYS[index])
    if not raw then return nil, false end
    local frozen = {cmsgpack.unpack(raw)}
    local found = table.remove(frozen, 1)
    if type(found) ~= "number" then damaged() end
    check_stored(frozen)
    if found == tag then return owner:thaw(frozen), raw end
    if found ~= found % 2^32 or found % 1 ~= 0 or found < 128 then damaged() end
    local other, looked = adopted[index] or {}, false
    if other[2] == hex(raw) or other[2] == "lost " .. found then return other[3] or nil, raw end
    if other[4] == found then
        looked = {hex(raw), twin(other[5]):thaw(frozen) or false, time_of(calls[1])}
    end
    foreign = foreign or {"foreign"}
    foreign[#foreign + 1] = {index, found, looked}
    return nil, raw
end

local function write(index, owner, tag, state, life)
    local ms = math.max(floor_ms, math.ceil(math.max(0, life) / 1000)) + LINGER_MS
    if not (ms < Exact.LARGEST) then damaged() end
    redis.call("SET", KEYS[index], cmsgpack.pack(tag, unpack(owner:freeze(state))), "PX", ms)
end

-- Refuses anything but whole numbers, false, and tables of them. A receipt may be a number beyond 2^53 if a program
-- with other numbers wrote it.
local function check_plain(name, value)
    if type(value) == "table" then
        for _, inner in pairs(value) do check_plain(name, inner) end
    elseif value then
        Exact.whole(name, value, -1e300, 1e300)
    end
end

local function run(call, state)
    local now = time_of(call)
    local operation, skew = call[1], Exact.whole("skew", call[3], -2^53, 2^53 - now)
    local name = METHODS[operation]
    if name == true then return state, {state or false, now, skew}, 0, false end
    local method = program[name]
    if not method then error("shapekit: operation " .. tostring(operation) .. " is unknown", 0) end
    local most = MOST_COST[operation]
    if most then Exact.whole("cost", call[4], 1, most == true and program.max_cost or most) end
    for place = most and 5 or 4, #call do check_plain(operation, call[place]) end
    if READS[operation] then return state, method(program, state, now, skew, unpack(call, 4)), 0, false end
    return method(program, state, now, skew, unpack(call, 4))
end

-- The numbers at the beginning of an answer are sent as one text of doubles: a client reads that faster than a
-- list, which has a line for each. No answer begins with another text.
local MOST_NUMBERS = 100
local function compact(answer)
    if type(answer) ~= "table" or #answer > MOST_NUMBERS then return answer end
    local count = 0
    while type(answer[count + 1]) == "number" do count = count + 1 end
    if count < 2 then return answer end
    local numbers = struct.pack(">" .. string.rep("d", count), unpack(answer, 1, count))
    if count == #answer then return numbers end
    return {numbers, unpack(answer, count + 1)}
end

local function run_all(state, raw)
    local answers, life = {}, nil
    for place, call in ipairs(calls) do
        local after, answer, lives, persist = run(call, state)
        if persist then state, life = after, lives end
        answers[place] = compact(answer)
    end
    return answers, state, life
end

local function one()
    local before, raw = read(1, program, tags)
    if foreign then error(foreign, 0) end
    local answers, state, life = run_all(before, raw)
    if life then write(1, program, tags, state, life) end
    return answers
end

-- A key may come twice: the second call finds the state that the first has left.
local function each()
    local answers, states, lives, last = {}, {}, {}, {}
    for index, key in ipairs(KEYS) do
        if not last[key] then states[key] = read(index, program, tags) end
        local answer, after, life = run_all(states[key], false)
        answers[index] = answer[1]
        states[key], lives[key], last[key] = after, life or lives[key], index
    end
    if foreign then error(foreign, 0) end
    for key, index in pairs(last) do
        if lives[key] then write(index, program, tags, states[key], lives[key]) end
    end
    return answers
end

local function parts()
    local before, state, answers = {}, {}, {}
    for index, part in ipairs(program.parts) do
        before[index] = read(index, part, tags[index]) or false
        state[index] = before[index]
    end
    if foreign then error(foreign, 0) end
    local now, skew
    for place, call in ipairs(calls) do
        local after, answer, _, persist = run(call, state)
        if persist then state = after end
        answers[place] = compact(answer)
        now, skew = time_of(call), call[3]
    end
    for index, part in ipairs(program.parts) do
        if state[index] ~= before[index] then
            write(index, part, tags[index], state[index], part:life(state[index], now, skew))
        end
    end
    return answers
end

-- The overrides, if the caller knows another version of them.
local function answer_overrides(known)
    if not known then return nil end
    local version = redis.pcall("HGET", ARGV[3], "version")
    if type(version) ~= "string" or string.find(version, "%D") then version = "" end
    if version == known[1] and not (known[2] and time_of(calls[1]) >= known[2]) then return nil end
    local text = redis.pcall("HGET", ARGV[3], "overrides")
    return {"changed", version, type(text) == "string" and text or "", time_of(calls[1])}
end

local function answered(run_mode)
    local ok, answer = pcall(function()
        local described = head[5]
        if described then
            local place = table.remove(KEYS)
            redis.call("HSET", place, unpack(described, 2))
            redis.call("EXPIRE", place, described[1])
        end
        program = twin(head[3])
        return answer_overrides(head[4]) or run_mode()
    end)
    if ok then return answer end
    local problem = answer
    if type(answer) == "table" then problem = answer.err end
    if not problem then return answer end
    -- An error of Lua itself, with its line: a value that cannot be unpacked, or that no twin understands.
    problem = string.gsub(problem, "^user_script:%d+: ", "DAMAGED ")
    -- Some servers put the line before their own errors, which clients recognize by the first word.
    return redis.error_reply((string.gsub(problem, "^@user_script: ?%d+: %-?", "")))
end
