-- Decodes values that were read already: the script touches no key, and so may run on any server.
--
-- ARGV[1]: the specs of programs. Then, for each value: the number of its program, and the value.
-- The reply: the seconds and microseconds of the server's time, then each state, or false if damaged.
--
-- The linker puts the twins before this text.

local specs, programs = cjson.decode(ARGV[1]), {}
for index, spec in ipairs(specs) do programs[index] = twin(spec) end

local function seen(owner, raw)
    local frozen = {cmsgpack.unpack(raw)}
    table.remove(frozen, 1)
    return owner:thaw(frozen)
end

local answer = {redis.call("TIME")}
for place = 2, #ARGV, 2 do
    local ok, state = pcall(seen, programs[tonumber(ARGV[place])], ARGV[place + 1])
    answer[#answer + 1] = ok and state or false
end
return answer
